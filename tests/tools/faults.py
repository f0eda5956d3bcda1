"""Faults that no mutation operator makes, put in one at a time: do the tests notice?

    python -m tests.tools.faults [--only SUBSTRING]

`faults.toml` says what is wrong, where, and which tests should fail. All happens in a
copy of the tree. pytest runs in forks of this process, which has imported torch.
"""

import os
import shutil
import sys
import tempfile
import tomllib
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch  # noqa: F401
import transformers.models.qwen3.modeling_qwen3  # noqa: F401
import tyro

ROOT = Path(__file__).resolve().parents[2]
FLAGS = "-x -q -n 0 -o addopts= -p no:nbval -p no:cacheprovider".split()
LIMIT = 300
"""Seconds for the tests of a fault."""


def in_child(tree: Path, tests: list[str]) -> None:
    sys.path[:] = [str(tree), *(p for p in sys.path if Path(p).resolve() != ROOT)]
    os.environ |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    for name in ("tests", "tests.tools"):  # this file's
        sys.modules.pop(name, None)
    sys.dont_write_bytecode = True
    os.chdir(tree)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os._exit(pytest.main([*FLAGS, *tests]))


def passes(tree: Path, tests: list[str], limit: float = LIMIT) -> bool:
    """Run the tests in a fork. One that takes too long does not pass."""
    child = get_context("fork").Process(target=in_child, args=(tree, tests))
    child.start()
    child.join(limit)
    child.kill()
    child.join()
    return child.exitcode == 0


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
