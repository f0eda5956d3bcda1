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


class Claims(ast.NodeTransformer):
    """Makes each `assert` of a cell, and the comparisons in it, write themselves down.

    Functions that a cell defines are left as they are.
    """

    def __init__(self):
        self.rows: list[dict] = []
        self.cell, self._current = 0, None

    def visit_FunctionDef(self, node):
        return node

    def visit_Assert(self, node):
        begin = self._call("__begin__", ast.Constant(ast.unparse(node.test)))
        test = self._call("__end__", InAssert().visit(node.test))
        return [
            ast.copy_location(ast.Expr(begin), node),
            ast.copy_location(ast.Expr(test), node),
        ]

    @staticmethod
    def _call(name, *arguments):
        return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])

    def namespace(self) -> dict:
        return {"__begin__": self.begin, "__end__": self.end, "__compare__": compare}

    def begin(self, text: str) -> None:
        SEEN.clear()
        self._current = text

    def end(self, held) -> None:
        self.rows.append(
            {
                "cell": self.cell,
                "claim": self._current,
                "held": bool(held),
                "compared": list(SEEN),
            }
        )


SEEN: list[dict] = []


class InAssert(ast.NodeTransformer):
    """`a < b` → `__compare__("a < b", ["<"], a, b)`."""

    def visit_Compare(self, node):
        self.generic_visit(node)
        if not all(type(op) in COMPARISONS for op in node.ops):
            return node
        signs = [ast.Constant(COMPARISONS[type(op)][0]) for op in node.ops]
        signs = ast.List(signs, ast.Load())
        text = ast.Constant(ast.unparse(node)[:120])
        return Claims._call("__compare__", text, signs, node.left, *node.comparators)


def compare(text: str, signs: list[str], *values):
    """The comparison's result; its distances are kept if they are numbers."""
    held = True
    for sign, a, b in zip(signs, values, values[1:]):
        one = HOLDS[sign](a, b)
        a, b = number(a), number(b)
        if a is not None and b is not None and sign not in ("==", "!="):
            distance = b - a if sign in ("<", "<=") else a - b
            SEEN.append({"text": text, "values": [a, b], "distance": distance})
        held = held & one if not isinstance(held, bool) else (held and one)
    return held


def number(value) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def execute(path: Path) -> dict:
    """Run a notebook's cells here; a row for every `assert` that was met."""
    from IPython.core.interactiveshell import InteractiveShell

    os.chdir(path.parent)
    sys.path.insert(0, str(path.parent))  # as a kernel does: `from course import …`
    shell, claims = InteractiveShell.instance(), Claims()
    shell.user_ns.update(claims.namespace())
    shell.ast_transformers.append(claims)
    changed = []
    for claims.cell, cell in enumerate(code_cells(path)):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            result = shell.run_cell("".join(cell["source"]))
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            text = f"{type(error).__name__}: {error}"
            row = {"cell": claims.cell, "claim": text, "held": False, "compared": []}
            claims.rows.append(row)
            break
        if compared(cell) and printed.getvalue() != "".join(streams(cell)):
            changed.append(claims.cell)
    return {"claims": claims.rows, "changed": changed}


def code_cells(path: Path) -> list[dict]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def compared(cell: dict) -> bool:
    return "nbval-ignore-output" not in cell["metadata"].get("tags", [])


def streams(cell: dict) -> Iterator[str]:
    """What the committed cell printed; here widgets print their name too."""
    for output in cell["outputs"]:
        if output["output_type"] == "stream" and output["name"] == "stdout":
            yield from output["text"]
        elif (name := "".join(output.get("data", {}).get("text/plain", ""))).startswith(
            "Explorer("
        ):
            yield name + "\n"


def one(job: tuple[Path, str, dict], out: Path) -> None:
    """A notebook under one of the other runs, in a process of its own."""
    path, name, changed = job
    start = time.perf_counter()
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
        tail = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
        row = {"cell": -1, "claim": tail[0], "held": False, "compared": []}
        made = {"claims": [row], "changed": []}
    record = {
        "notebook": path.stem,
        "digest": digest(path),
        "run": name,
        "seconds": round(time.perf_counter() - start, 1),
        **made,
    }
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    rows = made["claims"]
    failed = [row for row in rows if not row["held"]]
    print(f"{path.stem:<22} {name:<8} {record['seconds']:>6} s  {len(rows)} claims")
    for row in failed:
        print(f"    FAILED cell {row['cell']}: {row['claim']}", flush=True)


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
        compared = []
        texts = dict.fromkeys(c["text"] for _, row in rows for c in row["compared"])
        for each in texts:
            # The nearest of a run: a claim about several seeds is as good as its worst.
            mine = [
                min(
                    (c for c in row["compared"] if c["text"] == each),
                    key=lambda c: c["distance"],
                )
                for _, row in rows
                if any(c["text"] == each for c in row["compared"])
            ]
            gaps = [c["distance"] for c in mine]
            finite = [g for g in gaps if math.isfinite(g)]
            spread = statistics.stdev(finite) if len(finite) > 1 else 0.0
            apart = f"({min(gaps) / spread:.1f} sd)" if spread else ""
            values = "  ".join(short(c["values"]) for c in mine)
            compared.append((each, min(gaps), apart, values))
        failed = sorted({name for name, row in rows if not row["held"]})
        yield {"cell": cell, "text": text, "compared": compared, "failed": failed}


def short(values: list[float]) -> str:
    return "/".join(f"{v:.3g}" for v in values)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tests.other_runs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
    processors = PROCESSORS if everything else args.processors
    if processors == []:  # --processors alone: both
        processors = PROCESSORS
    runs = {f"salt {n}" if n else "here": {"REFIMPL_SALT": str(n)} for n in salts}
    runs |= {name: PROCESSORS[name] for name in processors or ()}
    if everything or args.own:
        runs["own"] = OWN
    return runs


if __name__ == "__main__":
    sys.exit(main())
