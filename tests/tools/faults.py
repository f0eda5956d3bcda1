"""Two hundred faults and more, put into the code one at a time: do the tests notice?

    python -m tests.tools.faults [--only SUBSTRING] [--out faults.jsonl]

`faults.toml` says what is wrong, where, and which tests should fail. All happens in a
copy of the tree; what the out file holds is not run again.
"""

import json
import os
import shutil
import sys
import tempfile
import time
import tomllib
from multiprocessing import get_context
from pathlib import Path

import tyro

ROOT, LIMIT = Path(__file__).resolve().parents[2], 300  # seconds for a fault's tests
FLAGS = "-x -q -n 0 -o addopts= -p no:nbval -p no:cacheprovider".split()
WARM = "pytest torch transformers.models.qwen3.modeling_qwen3 pandas scipy.stats"
os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def in_child(tree: Path, tests: list[str]) -> None:
    """pytest in a process that was forked, with the large libraries imported."""
    os.environ |= {"PYTHONPATH": str(tree), "TMPDIR": str(tree.parent)}
    sys.path[:] = [str(tree), *(p for p in sys.path if Path(p).resolve() != ROOT)]
    sys.dont_write_bytecode, tempfile.tempdir = True, None
    for name in ("tests", "tests.tools"):  # this file's
        sys.modules.pop(name, None)
    os.chdir(tree)
    for stream in (1, 2):
        os.dup2(os.open("../printed", os.O_CREAT | os.O_APPEND | os.O_WRONLY), stream)
    os._exit(sys.modules["pytest"].main([*FLAGS, *tests]))


def first_failure(tree: Path, tests: list[str], limit: float = LIMIT) -> str:
    """The test that failed first; an empty string if none did in time."""
    (printed := tree.parent / "printed").write_text("")
    child = get_context("fork").Process(target=in_child, args=(tree, tests))
    child.start()
    child.join(limit)
    if late := child.is_alive():
        child.kill()
    child.join()
    failed = [x for x in printed.read_text().split("\n") if x[:5] in ("FAILE", "ERROR")]
    failed += ["no verdict"] if child.exitcode and not late else []
    return failed[0].partition(" - ")[0] if failed else ""


def main(only: str = "", out: Path = Path("faults.jsonl")) -> None:
    every = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["fault"]
    every = [f for f in every if only in f["name"]]
    found = {x["name"]: x for x in map(json.loads, out.open())} if out.exists() else {}
    left = [f for f in every if f["name"] not in found]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        tree = Path(shutil.copytree(ROOT, Path(scratch, "tree"), symlinks=True))
        for f in every:
            if (tree / f["file"]).read_text().count(f["old"]) != 1:
                raise SystemExit(f"no longer applies: {f['name']}")
        list(map(__import__, WARM.split()))
        union = sorted({test for f in left for test in f["tests"]})
        if left and (red := first_failure(tree, union, 10 * LIMIT)):
            raise SystemExit(f"red without any fault: {red}")
        for f in left:
            path, start = tree / f["file"], time.monotonic()
            path.write_text((right := path.read_text()).replace(f["old"], f["new"]))
            first = first_failure(tree, f["tests"])
            path.write_text(right)
            line = {"name": f["name"], "caught": bool(first), "first": first}
            found[f["name"]] = line | {"seconds": round(time.monotonic() - start, 1)}
            with open(out, "a") as file:
                print(json.dumps(found[f["name"]], ensure_ascii=False), file=file)
            print(first or "SURVIVED", "|", f["name"], flush=True)
    lived = [f["name"] for f in every if not found[f["name"]]["caught"]]
    print(f"{len(every) - len(lived)} of {len(every)} caught; not:", *lived, sep="\n")


if __name__ == "__main__":
    tyro.cli(main)
