"""The claims as the chapters quote them, and the runs that decided them."""

import csv
from collections.abc import Mapping, Sequence
from functools import cache

import pandas as pd
from IPython.display import Markdown

from course import DATA
from course.kit.tables import markdown
from experiments import evidence
from experiments.claims import CLAIMS, PAPERS, SECOND, behind, of_cell
from experiments.effects import Mean
from experiments.grid import OLD, Cell
from experiments.statistics import Estimate, estimate

STORE = DATA / "evidence"
CHAPTERS = {
    "04_dr_grpo": (5,),
    "05_gspo": (6, 8),
    "06_dapo": (1, 2, 3, 4),
    "07_cispo": (9,),
    "08_gmpo": (10,),
    "09_moe_and_rspo": (7, 11, 12),
    "10_sapo": (13, 14),
    "11_one_surrogate": (15,),
    "13_real_model": (16,),
    "16_probability": (17,),
}
"""The chapter that each claim belongs to."""
SMALLEST = {str(claim.number): claim.smallest for claim in (*CLAIMS, *SECOND)}


@cache
def everything() -> pd.DataFrame:
    """One line per stored run, with its outcomes."""
    return evidence.table(STORE)


@cache
def table() -> pd.DataFrame:
    """The runs from the first five warm starts, on which the chapters are based."""
    return everything().loc[lambda runs: runs["start"].isin(OLD)]


@cache
def read() -> tuple[pd.DataFrame, dict[str, pd.DataFrame]]:
    """The runs, and the rows of each."""
    runs, rows = evidence.read(STORE)
    changed = runs["changed"].map(lambda settings: tuple(sorted(settings.items())))
    known = {"changed": changed, "weights": runs["weights"].fillna("lost")}
    return runs.assign(**known), dict(iter(rows.groupby("run")))


def _of(cell: Cell) -> pd.DataFrame:
    """One cell's runs from the first five starts."""
    runs = read()[0]
    return of_cell(runs[runs["start"].isin(OLD)], cell)


def column(name: str, cell: Cell, seeds: int = 1) -> list[list[float]]:
    """Return a column by rollout: one list per run, by warm start, then by seed.

    NaN where nothing was measured. Raises `ValueError` if no such run is stored.
    """
    rows = read()[1]
    chosen = _of(cell).sort_index()
    chosen = chosen[chosen.index.get_level_values("seed") < seeds]
    if chosen.empty:
        raise ValueError(f"no run of {cell} is stored at {str(STORE)!r}")
    return [rows[run][name].to_list() for run in chosen["run"]]


def mean(name: str, cell: Cell, runs: pd.DataFrame) -> Estimate:
    """An outcome of a cell's runs: its mean over warm starts and its 95 % interval."""
    return estimate(Mean(name, cell).pairs(runs))


def late(name: str, arm: str, delay: int, cap: float | None) -> list[float]:
    """An outcome with a late sampler, one run from each warm start; see `behind`."""
    runs = of_cell(everything(), behind(arm, delay, cap))
    return runs[name].xs(0, level="seed").sort_index().to_list()


def rows_of(run: str) -> pd.DataFrame:
    """Return the measurements of a stored run, rollout by rollout."""
    return read()[1][run]


def final(cells: Mapping[str, Cell]) -> dict[str, list[float]]:
    """Return the held-out accuracy after the last rollout for each warm start."""
    return {
        label: [run[-1] for run in column("accuracy", cell)]
        for label, cell in cells.items()
    }


def difference(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Return the mean of a − b over one run per warm start, with its 95 % interval."""
    pairs = enumerate(zip(a, b, strict=True))
    return estimate({start: [x - y] for start, (x, y) in pairs})


def shown(made: Estimate, digits: int = 2) -> str:
    """Write an effect with its interval."""
    number = f"{{:+.{digits}f}}"
    return f"{number} ({number} to {number})".format(*made[:3])


@cache
def ledger() -> tuple[dict[str, str], ...]:
    """The stored ledger's lines: the claims, then the A/A control."""
    path = STORE.with_name(f"{STORE.name}.ledger.csv")
    with open(path, newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def judged() -> list[dict[str, str]]:
    """The lines of all claims, without the control."""
    return [line for line in ledger() if line["claim"].isdecimal()]


def seconds() -> list[dict[str, str]]:
    """Lines of second outcomes, such as 3b, which are not counted as claims."""
    known = {str(claim.number) for claim in SECOND}
    return [line for line in ledger() if line["claim"] in known]


def claimed() -> list[dict[str, str]]:
    """The claims from papers, which chapter 12's ledger lists."""
    return judged()[: len(PAPERS)]


def amount(value: str | float, unit: str) -> str:
    """Write an effect as +0.12, or as ×0.70 if it is the log2 of a quotient."""
    if value == "":
        return "–"
    if unit.startswith("log2 of "):
        return f"×{2 ** float(value):.3g}"
    return f"{float(value):+.2g}".replace("-", "−")


def measured(line: Mapping[str, str]) -> list[str]:
    """Effect, interval, unit, runs, the detectable and the smallest relevant effect,
    and the verdict."""
    unit = line["unit"]
    effect, low, high = (amount(line[k], unit) for k in ("effect", "low", "high"))
    seen = amount(line["detectable"], unit).lstrip("+")
    matters = amount(SMALLEST[line["claim"]], unit).lstrip("+")
    verdict = line["verdict"] + (f": {line['why']}" if line["why"] else "")
    runs = f"{line['starts']}, {line['runs']}"
    return [
        *(effect, f"{low} to {high}", unit.removeprefix("log2 of "), runs),
        *(seen, matters, verdict),
    ]


HEAD = (
    "effect",
    "95 % interval",
    "unit",
    "warm starts, pairs or runs",
    "detectable",
    "would matter",
    "verdict",
)


def parent(line: Mapping[str, str]) -> int:
    """The number of the claim to which a line belongs: 3 for 3b."""
    return int(line["claim"].rstrip("bc"))


def whole() -> Markdown:
    """The ledger, each line linked to its chapter, with its command."""
    home = {n: f"{name}.ipynb" for name, numbers in CHAPTERS.items() for n in numbers}
    rows = []
    for line in claimed() + seconds():
        n, where = line["claim"], home[parent(line)]
        see = f"[chapter {where[:2]}]({where}), `--claims {n}`"
        rows.append([f"{n} · {line['title']}", *measured(line), see])
    return markdown(rows, ("claim", *HEAD, "see, run"), disable_numparse=True)


def control() -> Markdown:
    """The A/A control's lines: one algorithm under two names."""
    numbers = ("effect", "low", "high")
    rows = [
        [
            line["title"].partition(": ")[2],
            *(f"{float(line[k]):+.3f}" if line[k] else "–" for k in numbers),
            line["verdict"] if float(line["high"] or 1) else "no run reached the goal",
        ]
        for line in ledger()
        if line["claim"] == "A/A"
    ]
    return markdown(rows, ("outcome", *numbers, "verdict"), disable_numparse=True)


def folded(summary: str, shown: Markdown) -> Markdown:
    """Content that a page folds behind a line to click."""
    opened = f"<details><summary>{summary}</summary>\n\n{shown.data}\n\n</details>"
    return Markdown(opened)
