"""CONTRIBUTING's example, applied to a copy of the tree: no more is needed.

The copy is a checkout of its own, whose last commit is the tree without the example, so
that its tests see what a contributor's do, the changelog's line included.
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refimpl.algorithms import ALGORITHMS

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

REGISTERED = "conformance properties algorithms closed_forms hand_values shift"
TESTS = [f"tests/losses/test_{name}.py" for name in [*REGISTERED.split(), "topr"]]
TESTS += "tests/bridges tests/training/test_rooms.py tests/training/test_cli.py".split()
TESTS += ["tests/test_bad_input.py", "tests/evidence/test_behaviour.py"]
TESTS += [
    f"tests/course/test_{name}.py"
    for name in "methods style site_pages markdown".split()
]
"""What knows every method by its name."""
AFTERWARDS = {
    "conformance": "-m refimpl conformance",
    "evidence": "-m experiments evidence check",
    "training": "-m refimpl train --algorithm topr --rollouts 2",
    "figure": "-c exec(open('../../figure.py').read())",  # as a cell of a notebook
    "site": "-m web ../../site",
    "tests": "-m pytest -q -o addopts= -p no:nbval -p no:cacheprovider -k",
}
"""What must pass in the copy, in its folder of notebooks."""


TOPR, REGISTRY = "refimpl/algorithms/topr.py", "refimpl/algorithms/__init__.py"
WRITTEN = TOPR, REGISTRY, "tests/losses/test_topr.py", "../figure.py", "CHANGELOG.md"
"""The files of the blocks that are not commands, in their order."""


def blocks() -> list[tuple[str, str]]:
    """The blocks with which CONTRIBUTING says how to add a method: kind and text."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    section = text.split("## Add an algorithm")[1].split("\n## ")[0]
    return BLOCK.findall(section)


def follow(folder: Path) -> None:
    """Write what the blocks say, and run their commands that write tables.

    Engines are asked again only where they are installed.
    """
    code = [block for block in blocks() if block[0] != "bash"]
    for name, (kind, text) in zip(WRITTEN, code, strict=True):
        path = folder / name
        if kind == "diff":
            text = added(path.read_text("utf-8"), text)
        path.write_text(text, encoding="utf-8")
    commands = "".join(text for kind, text in blocks() if kind == "bash").splitlines()
    split = [shlex.split(line, comments=True) for line in commands]
    tables = [w for w in split if w[-1].startswith("tests") and "pytest" not in w]
    assert [words[-1] for words in tables] == [
        "tests.tools.tables",
        "tests/bridges/report.py",
    ]
    if not all(map(importlib.util.find_spec, ("trl", "verl", "liger_kernel"))):
        tables.pop()
    for _, *words in tables:
        command = [sys.executable, *words]
        subprocess.run(command, cwd=folder, env=own(folder), check=True)


def own(folder: Path) -> dict[str, str]:
    """The environment of a copy that is installed: its `refimpl`, and nothing else of
    it, is found from any folder."""
    path = {"PYTHONPATH": str(folder)}
    return os.environ | path | {"MPLBACKEND": "agg", "PYTEST_ADDOPTS": ""}


def committed(folder: Path) -> None:
    """A folder becomes a checkout with one commit."""
    who = "-c user.name=copy -c user.email=copy@example.org".split()
    for words in ("init -q", "add -A", "commit -q --no-verify -m before"):
        command = ["git", *who, "-c", "commit.gpgsign=false", *words.split()]
        subprocess.run(command, cwd=folder, check=True)


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The tree with TOPR in it."""
    folder = tmp_path_factory.mktemp("added") / "copy"
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True).stdout
    if not names:
        pytest.skip("not a checkout: git does not list its files")
    for name in names.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    committed(folder)
    follow(folder)
    return folder


def added(text: str, diff: str) -> str:
    """Each + line of a diff stands after the lines that are before it there.

    Of two such places it is the first: a changelog begins with the next version.
    """
    before = ""
    for sign, line in ((line[:1], line[1:]) for line in diff.splitlines()):
        if sign == "+":
            assert f"\n{before}\n" in text
            text = text.replace(f"\n{before}\n", f"\n{before}\n{line}\n", 1)
            before = f"{before}\n{line}"
        else:
            before = line
    return text


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.parametrize("what", AFTERWARDS)
def test_after_the_five_steps_everything_passes(what, copy):
    """What is asked of one of the other methods is asked in the tree itself."""
    words, folder = AFTERWARDS[what].split(), copy / "notebooks"
    if what == "tests":
        words += [f"not ({' or '.join(ALGORITHMS)})", *TESTS]
        folder = copy
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=own(copy),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    if what == "conformance":
        assert '"topr |' in done.stdout
    if what == "site":
        assert 'id="topr-skyrl"' in (copy / "../site/flags.html").read_text("utf-8")
