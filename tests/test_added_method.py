"""CONTRIBUTING's example, applied to a copy of the tree: no more is needed."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

REGISTERED = "algorithms closed_forms conformance curves hand_values shift topr".split()
"""The tests of the losses that read the registry; the others see no new method."""
TESTS = [f"tests/losses/test_{name}.py" for name in REGISTERED]
AFTERWARDS = {
    "conformance": ["conformance"],
    "evidence": ["evidence", "check"],
    "curve": "curves --algorithm topr --out curves.csv".split(),
    "training": "train --algorithm topr --rollouts 2".split(),
    "figure": ["figure.py"],
    "tests": [*TESTS, "tests/course/test_style.py", "tests/bridges"],
}
"""What must pass in the copy: commands, a script, tests."""
CHILD = """
import contextlib, io, json, runpy, sys, traceback
import pytest
from refimpl.__main__ import main

ways = {"figure": lambda words: runpy.run_path(*words) and 0}
ways["tests"] = lambda words: pytest.main(
    "-q -o addopts= -p no:nbval -p no:cacheprovider".split() + words
)
found = {}
for name, words in json.loads(sys.argv[1]).items():
    told, code = io.StringIO(), 1
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            code = int(ways.get(name, main)(words))
        except BaseException:
            traceback.print_exc()
    found[name] = code, told.getvalue()
print(json.dumps(found))
"""


def blocks() -> dict[str, str]:
    """The code that CONTRIBUTING tells one to write, by the file that it goes into."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = text.split("## Add an algorithm")[1].split("## Add an exercise")[0]
    known = [code for kind, code in BLOCK.findall(section) if kind != "bash"]
    files = "refimpl/algorithms/topr.py", "registry.diff", "tests/losses/test_topr.py"
    return dict(zip((*files, "figure.py"), known, strict=True))


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The tree with TOPR in it."""
    folder = tmp_path_factory.mktemp("copy")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True).stdout
    if not names:
        pytest.skip("not a checkout: git does not list its files")
    for name in names.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for name, code in blocks().items():
        (folder / name).write_text(code, encoding="utf-8")
    registry = folder / "refimpl/algorithms/__init__.py"
    registry.write_text(added(registry.read_text(), blocks()["registry.diff"]))
    return folder


def added(text: str, diff: str) -> str:
    """Each + line of a diff stands after the line that is before it there."""
    before = ""
    for sign, line in ((line[:1], line[1:]) for line in diff.splitlines()):
        if sign == "+":
            assert text.count(f"{before}\n") == 1
            text = text.replace(f"{before}\n", f"{before}\n{line}\n")
        before = line
    return text


@pytest.fixture(scope="module")
def found(copy) -> dict[str, tuple[int, str]]:
    """The exit code and the words of each; one process imports torch once."""
    path = os.pathsep.join(map(str, (copy, copy / "notebooks")))  # a clone of its own
    here = {"PYTHONPATH": path, "MPLBACKEND": "agg", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(AFTERWARDS)],
        cwd=copy,
        env=os.environ | here,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("what", AFTERWARDS)
def test_after_the_four_steps_everything_passes(what, found):
    code, said = found[what]
    assert code == 0, said[-2000:]
    if what == "conformance":
        assert '"topr |' in said
