"""Do the notebooks' claims hold with other seeds, and on other processors?

    python -m tests.tools.other_runs             every notebook, every run below
    python -m tests.tools.other_runs --only 02 05 --salts 1 2 3 --processors
    python -m tests.tools.other_runs --report    the table again, from the stored file

Executes every notebook under salts 1 to 5 (`REFIMPL_SALT`), once from a policy that is
trained on this machine instead of the shipped one (`own`), and on the instruction sets
that older processors have (`default`, `avx2`); two at a time. For each `assert` in a
notebook it prints the values that its comparisons took, and how near the nearest came
to failing: as a distance, and in standard deviations over the runs. An `assert` that
fails is recorded, and the notebook goes on. Also listed are the cells whose printed
text is not the committed one although nbval compares it (they lack the tag
`nbval-ignore-output`): with other seeds that may be meant, on another processor never.

The runs append to `--out` (JSON lines) as they end; a run that is in the file is not
made again, so that an interrupted command goes on where it stopped.
"""

import ast
import contextlib
import hashlib
import io
import json
import math
import operator
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tyro

ROOT = Path(__file__).resolve().parents[2]
OLD = {"MKL_CBWR": "COMPATIBLE"}
PROCESSORS = {
    "default": {"ATEN_CPU_CAPABILITY": "default", **OLD},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", **OLD},
}
OWN = {"REFIMPL_SALT": "6", "REFIMPL_OWN_STARTS": "1"}
COMPARISONS = {
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Eq": operator.eq,
    "NotEq": operator.ne,
}
"""By the names that `ast` has for them."""
SEEN: list[dict] = []
"""The comparisons of the assert that is being evaluated."""


class Claims(ast.NodeTransformer):
    """`assert test` → `__claim__("test", test)`, which writes itself down.

    Functions that a cell defines are left as they are.
    """

    def __init__(self):
        self.rows: list[dict] = []
        self.cell = 0

    def visit_FunctionDef(self, node):
        return node

    def visit_Assert(self, node):
        text, test = ast.Constant(ast.unparse(node.test)), InAssert().visit(node.test)
        return ast.copy_location(ast.Expr(call("__claim__", text, test)), node)

    def claim(self, text: str, held) -> None:
        row = {"cell": self.cell, "claim": text, "held": bool(held)}
        self.rows.append(row | {"compared": SEEN.copy()})
        SEEN.clear()


class InAssert(ast.NodeTransformer):
    """`a < b` → `__compare__("a < b", ["Lt"], a, b)`."""

    def visit_Compare(self, node):
        self.generic_visit(node)
        kinds = [type(op).__name__ for op in node.ops]
        if not set(kinds) <= COMPARISONS.keys():
            return node
        text = ast.Constant(ast.unparse(node)[:120])
        kinds = ast.List([ast.Constant(kind) for kind in kinds], ast.Load())
        return call("__compare__", text, kinds, node.left, *node.comparators)


def call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def compare(text: str, kinds: list[str], *values):
    """The comparison's result; its distances are kept if they are numbers."""
    held = True
    for kind, a, b in zip(kinds, values, values[1:]):
        one = COMPARISONS[kind](a, b)
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            a, b = float(a), float(b)
            distance = b - a if kind in ("Lt", "LtE") else a - b
            if kind not in ("Eq", "NotEq"):
                SEEN.append({"text": text, "values": [a, b], "distance": distance})
        held = held & one if not isinstance(held, bool) else (held and one)
    return held


def execute(path: Path) -> dict:
    """Run a notebook's cells here; a row for every `assert` that was met."""
    from IPython.core.interactiveshell import InteractiveShell

    os.chdir(path.parent)
    sys.path.insert(0, str(path.parent))  # as a kernel does: `from course import …`
    shell, claims = InteractiveShell.instance(), Claims()
    shell.user_ns.update(__claim__=claims.claim, __compare__=compare)
    shell.ast_transformers.append(claims)
    changed = []
    for claims.cell, cell in enumerate(code_cells(path)):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            result = shell.run_cell("".join(cell["source"]))
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            claims.claim(f"{type(error).__name__}: {error}", False)
            break
        ignored = "nbval-ignore-output" in cell["metadata"].get("tags", [])
        if not ignored and printed.getvalue() != "".join(streams(cell)):
            changed.append(claims.cell)
    return {"claims": claims.rows, "changed": changed}


def code_cells(path: Path) -> list[dict]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def streams(cell: dict) -> Iterator[str]:
    """What the committed cell printed; here widgets print their name too."""
    for output in cell["outputs"]:
        if output["output_type"] == "stream" and output["name"] == "stdout":
            yield from output["text"]
        name = "".join(output.get("data", {}).get("text/plain", ""))
        if name.startswith("Explorer("):
            yield name + "\n"


def one(job: tuple[Path, str, dict], out: Path) -> None:
    """A notebook under one of the other runs, in a process of its own."""
    (path, name, changed), start = job, time.perf_counter()
    with tempfile.TemporaryDirectory() as figures:
        scratch = {"MPLBACKEND": "agg", "REFIMPL_FIGURES": figures}
        done = subprocess.run(
            [sys.executable, "-m", "tests.tools.other_runs", "--notebook", str(path)],
            env={**os.environ, "HF_HUB_OFFLINE": "1", **scratch, **changed},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    marked = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if marked:
        made = json.loads(marked[-1].removeprefix(MARK))
    else:
        why = f"exit {done.returncode}: {done.stderr.strip()[-200:]}"
        row = {"cell": -1, "claim": why, "held": False, "compared": []}
        made = {"claims": [row], "changed": []}
    seconds = round(time.perf_counter() - start, 1)
    known = {"notebook": path.stem, "digest": digest(path), "run": name}
    record = {**known, "seconds": seconds, **made}
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    print(f"{path.stem:<22} {name:<8} {seconds:>6} s", flush=True)


MARK = "claims: "


def digest(path: Path) -> str:
    """Of the code alone: prose and outputs may change."""
    code = [cell["source"] for cell in code_cells(path)]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:12]


def stored(out: Path) -> list[dict]:
    """The records of `out` that are about the notebooks as they stand."""
    if not out.exists():
        return []
    now = {path.stem: digest(path) for path in notebooks()}
    records = []
    for line in out.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # cut off by a kill
            record = json.loads(line)
            if now.get(record["notebook"]) == record["digest"]:
                records.append(record)
    return records


def notebooks(only: tuple[str, ...] = ()) -> list[Path]:
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    return [path for path in paths if not only or path.stem.split("_")[0] in only]


def print_report(records: list[dict]) -> int:
    """Print every claim with the values it took; return how many failed somewhere."""
    failures = 0
    for path in notebooks():
        runs = [r for r in records if r["notebook"] == path.stem]
        if runs:
            names = ", ".join(r["run"] for r in runs)
            print(f"\n{path.stem}: {len(runs)} runs ({names})")
        rows = defaultdict(list)
        for run in runs:
            if run["changed"]:
                print(f"  {run['run']}: compared outputs differ: {run['changed']}")
            for row in run["claims"]:
                rows[row["cell"], row["claim"]].append(row | {"run": run["run"]})
        for (cell, text), met in sorted(rows.items(), key=lambda item: item[0][0]):
            print(f"  cell {cell:>2}  {text}", *compared(met), sep="\n" + 11 * " ")
            if failed := sorted({row["run"] for row in met if not row["held"]}):
                failures += 1
                print(f"           FAILED in {' '.join(failed)}")
    return failures


def compared(rows: list[dict]) -> Iterator[str]:
    """Of each comparison in a claim how near it came to failing, over the runs."""
    worst = defaultdict(list)  # a claim about several seeds is as good as its worst
    for row in rows:
        of_run = defaultdict(list)
        for one in row["compared"]:
            of_run[one["text"]].append(one)
        for text, every in of_run.items():
            worst[text].append(min(every, key=operator.itemgetter("distance")))
    for text, every in worst.items():
        gaps = [one["distance"] for one in every]
        finite = [gap for gap in gaps if math.isfinite(gap)]
        spread = statistics.stdev(finite) if len(finite) > 1 else 0.0
        apart = f"({min(gaps) / spread:.1f} sd)" if spread else ""
        values = ("/".join(f"{x:.3g}" for x in one["values"]) for one in every)
        yield f"{text}: nearest {min(gaps):+.3g} {apart}   {'  '.join(values)}"


def main(
    only: tuple[str, ...] = (),  # chapters, as 02 05
    salts: tuple[int, ...] = (),  # other seeds; if no run is named, all there are
    own: bool = False,  # from a policy that is trained here
    processors: bool = False,  # on older instruction sets
    workers: int = 2,  # notebooks at a time
    out: Path = ROOT / "other_runs.jsonl",
    report: bool = False,  # run nothing
    notebook: Path | None = None,  # run this one alone, as every run does in a process
) -> None:
    if notebook is not None:
        print(f"\n{MARK}{json.dumps(execute(notebook))}")
        return
    if not report:
        done = {(r["notebook"], r["run"]) for r in stored(out)}
        jobs = [
            (path, name, changed)
            for name, changed in chosen(salts, own, processors).items()
            for path in notebooks(only)
            if (path.stem, name) not in done
        ]
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda job: one(job, out), jobs))
    sys.exit(bool(print_report(stored(out))))


def chosen(salts: tuple[int, ...], own: bool, processors: bool) -> dict[str, dict]:
    """The runs that were asked for; all of them if none was named."""
    if not (salts or own or processors):
        salts, own, processors = range(1, 6), True, True
    runs = {f"salt {n}" if n else "here": {"REFIMPL_SALT": str(n)} for n in salts}
    return runs | (PROCESSORS if processors else {}) | ({"own": OWN} if own else {})


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
