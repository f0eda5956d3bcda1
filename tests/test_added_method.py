"""CONTRIBUTING's example, applied to a copy of the tree: no more is needed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

AFTERWARDS = {
    "the tests of the losses": "-m pytest -q tests/losses tests/course/test_style.py",
    "the tests of the bridges": "-m pytest -q tests/bridges",
    "the conformance cases": "-m refimpl conformance",
    "the stored evidence": "-m refimpl evidence check",
    "the curve": "-m refimpl curves --algorithm topr --out curves.csv",
    "two rollouts": "-m refimpl train --algorithm topr --rollouts 2",
    "the figure": "figure.py",
}
"""What must pass in the copy, as arguments of python."""


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


@pytest.mark.slow
@pytest.mark.parametrize("what", AFTERWARDS)
def test_after_the_four_steps_everything_passes(what, copy):
    arguments = AFTERWARDS[what].split()
    if "pytest" in arguments:  # one process, no notebooks
        arguments += ["-o", "addopts=", "-p", "no:nbval", "-p", "no:cacheprovider"]
    path = os.pathsep.join(map(str, (copy, copy / "notebooks")))  # a clone of its own
    here = {"PYTHONPATH": path, "MPLBACKEND": "agg", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        env=os.environ | here,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 5), (done.stdout + done.stderr)[-2000:]  # 5: no tests
    if what == "the conformance cases":
        assert '"topr |' in done.stdout
