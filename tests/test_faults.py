"""Every fault of tools/faults.toml can be put in, and its tests are there."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent

FAULTS = tomllib.loads((ROOT / "tests/tools/faults.toml").read_text("utf-8"))["fault"]


def test_every_fault_is_one_change_of_code_that_is_there():
    assert len({fault["name"] for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        right = (ROOT / fault["file"]).read_text("utf-8")
        wrong = right.replace(fault["old"], fault["new"])
        assert right.count(fault["old"]) == 1 and wrong != right, fault["name"]
        if fault["file"].endswith(".py"):
            ast.parse(wrong, fault["name"])  # or every test would notice


def test_the_tests_that_should_notice_are_there():
    for test in (test for fault in FAULTS for test in fault["tests"]):
        path, _, name = test.partition("[")[0].partition("::")
        assert f"def {name}" in Path(ROOT, path).read_text("utf-8"), test
    assert all(fault["tests"] for fault in FAULTS)
