"""Faults that no mutation operator makes, put in one at a time: do the tests notice?

    python -m tests.tools.faults [--only SUBSTRING]

`faults.toml` says what is wrong, where, and which tests should fail. All happens in a
copy of the tree.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parents[2]
FLAGS = "-x -q -n 0 -o addopts= -p no:nbval -p no:cacheprovider".split()
LIMIT = 300
"""Seconds for the tests of a fault."""


def passes(tree: Path, tests: list[str], limit: float = LIMIT) -> bool:
    """Run the tests. One that takes too long does not pass."""
    environment = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *FLAGS, *tests]
    given = {"cwd": tree, "env": os.environ | environment, "timeout": limit}
    try:
        return not subprocess.run(command, capture_output=True, **given).returncode
    except subprocess.TimeoutExpired:
        return False


def main(only: str = "") -> None:
    every = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["fault"]
    every = [fault for fault in every if only in fault["name"]]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        tree = Path(shutil.copytree(ROOT, Path(scratch, "tree"), symlinks=True))
        tests = sorted({test for fault in every for test in fault["tests"]})
        if not passes(tree, tests, 10 * LIMIT):
            raise SystemExit("a test fails without any fault")
        survived = 0
        for fault in every:
            path = tree / fault["file"]
            right = path.read_text("utf-8")
            path.write_text(right.replace(fault["old"], fault["new"]), "utf-8")
            alive = passes(tree, fault["tests"])
            survived += alive
            path.write_text(right, "utf-8")
            print("SURVIVED" if alive else "caught", "|", fault["name"], flush=True)
    print(f"{len(every) - survived} of {len(every)} caught")
    raise SystemExit(survived > 0)


if __name__ == "__main__":
    tyro.cli(main)
