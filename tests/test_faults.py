"""Every fault of tools/faults.toml can be put in, and its tests are there."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_fault_is_one_change_of_code_that_is_there_and_has_tests():
    faults = tomllib.loads((ROOT / "tests/tools/faults.toml").read_text("utf-8"))
    for fault in faults["fault"]:
        right = (ROOT / fault["file"]).read_text("utf-8")
        wrong = right.replace(fault["old"], fault["new"])
        assert right.count(fault["old"]) == 1 and wrong != right, fault["name"]
        ast.parse(wrong, fault["name"])  # or every test would notice
        assert fault["tests"]
        for test in fault["tests"]:
            path, _, name = test.partition("[")[0].partition("::")
            assert f"def {name}" in Path(ROOT, path).read_text("utf-8"), test
