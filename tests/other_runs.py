"""Do the notebooks' claims hold with other seeds, and on other processors?

    python -m tests.other_runs                     every notebook, every run below
    python -m tests.other_runs --only 02 05 --salts 1 2 3 --processors
    python -m tests.other_runs --report            the table again, from the stored file

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

import argparse
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLD = {"MKL_CBWR": "COMPATIBLE"}
PROCESSORS = {
    "default": {"ATEN_CPU_CAPABILITY": "default", **OLD},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", **OLD},
}
OWN = {"REFIMPL_SALT": "6", "REFIMPL_OWN_STARTS": "1"}
COMPARISONS = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}
HOLDS = dict(COMPARISONS.values())
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
    """`a < b` → `__compare__("a < b", ["<"], a, b)`."""

    def visit_Compare(self, node):
        self.generic_visit(node)
        if not all(type(op) in COMPARISONS for op in node.ops):
            return node
        signs = [ast.Constant(COMPARISONS[type(op)][0]) for op in node.ops]
        text = ast.Constant(ast.unparse(node)[:120])
        signs = ast.List(signs, ast.Load())
        return call("__compare__", text, signs, node.left, *node.comparators)


def call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def compare(text: str, signs: list[str], *values):
    """The comparison's result; its distances are kept if they are numbers."""
    held = True
    for sign, a, b in zip(signs, values, values[1:]):
        one = HOLDS[sign](a, b)
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            a, b = float(a), float(b)
            distance = b - a if sign in ("<", "<=") else a - b
            if sign not in ("==", "!="):
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
            [sys.executable, "-m", "tests.other_runs", "--execute", str(path)],
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


def notebooks(only: list[str] = ()) -> list[Path]:
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    return [path for path in paths if not only or path.stem[:2] in only]


def report(records: list[dict]) -> int:
    """Print every claim with the values it took; return how many failed somewhere."""
    failures = 0
    for path in notebooks():
        runs = [r for r in records if r["notebook"] == path.stem]
        if runs:
            names = ", ".join(r["run"] for r in runs)
            print(f"\n{path.stem}: {len(runs)} runs ({names})")
            for run in runs:
                if run["changed"]:
                    print(f"  {run['run']}: compared outputs differ: {run['changed']}")
        for claim in claims_of(runs):
            failures += bool(claim["failed"])
            print(f"  cell {claim['cell']:>2}  {claim['text']}")
            for text, nearest, apart, values in claim["compared"]:
                print(f"           {text}: nearest {nearest:+.3g} {apart}   {values}")
            if claim["failed"]:
                print(f"           FAILED in {' '.join(claim['failed'])}")
    return failures


def claims_of(runs: list[dict]) -> Iterator[dict]:
    """One claim after another, with what all runs saw of it."""
    seen: dict[tuple, list] = {}
    for run in runs:
        for row in run["claims"]:
            seen.setdefault((row["cell"], row["claim"]), []).append((run["run"], row))
    for (cell, text), rows in sorted(seen.items(), key=lambda item: item[0][0]):
        nearest: dict[str, list[dict]] = {}
        for _, row in rows:
            # A claim about several seeds is as good as its worst.
            worst: dict[str, dict] = {}
            for one in row["compared"]:
                known = worst.get(one["text"], one)
                worst[one["text"]] = min(known, one, key=lambda c: c["distance"])
            for each, one in worst.items():
                nearest.setdefault(each, []).append(one)
        compared = []
        for each, every in nearest.items():
            gaps = [one["distance"] for one in every]
            finite = [gap for gap in gaps if math.isfinite(gap)]
            spread = statistics.stdev(finite) if len(finite) > 1 else 0.0
            apart = f"({min(gaps) / spread:.1f} sd)" if spread else ""
            values = ("/".join(f"{x:.3g}" for x in one["values"]) for one in every)
            compared.append((each, min(gaps), apart, "  ".join(values)))
        failed = sorted({name for name, row in rows if not row["held"]})
        yield {"cell": cell, "text": text, "compared": compared, "failed": failed}


def parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    made.add_argument("--only", nargs="+", default=[], metavar="CHAPTER")
    made.add_argument("--salts", nargs="*", type=int, metavar="N")
    made.add_argument("--own", action="store_true", help="from a policy trained here")
    made.add_argument("--processors", nargs="*", choices=PROCESSORS)
    made.add_argument("--workers", type=int, default=2)
    made.add_argument("--out", type=Path, default=ROOT / "other_runs.jsonl")
    made.add_argument("--report", action="store_true", help="run nothing")
    made.add_argument("--execute", type=Path, help=argparse.SUPPRESS)
    return made


def main() -> int:
    args = parser().parse_args()
    if args.execute is not None:
        print(f"\n{MARK}{json.dumps(execute(args.execute))}")
        return 0
    if not args.report:
        done = {(r["notebook"], r["run"]) for r in stored(args.out)}
        jobs = [
            (path, name, changed)
            for name, changed in chosen(args).items()
            for path in notebooks(args.only)
            if (path.stem, name) not in done
        ]
        with ThreadPoolExecutor(args.workers) as pool:
            list(pool.map(lambda job: one(job, args.out), jobs))
    return 1 if report(stored(args.out)) else 0


def chosen(args) -> dict[str, dict]:
    """The runs that were asked for; all of them if none was named."""
    everything = args.salts is None and args.processors is None and not args.own
    salts = range(1, 6) if everything else args.salts or ()
    both = everything or args.processors == []  # `--processors` alone
    processors = PROCESSORS if both else args.processors or ()
    runs = {f"salt {n}" if n else "here": {"REFIMPL_SALT": str(n)} for n in salts}
    runs |= {name: PROCESSORS[name] for name in processors}
    if everything or args.own:
        runs["own"] = OWN
    return runs


if __name__ == "__main__":
    sys.exit(main())
