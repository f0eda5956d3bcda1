"""The sixteen claims as the chapters quote them, and the runs that decided them."""

import csv
from collections.abc import Iterable, Mapping
from functools import cache

import pandas as pd
from IPython.display import Markdown

from course import DATA
from refimpl.experiments import evidence

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
}
"""The chapter that each claim belongs to."""


@cache
def table() -> pd.DataFrame:
    """One line per stored run, with its outcomes."""
    return evidence.table(STORE)


@cache
def ledger() -> tuple[dict[str, str], ...]:
    """The stored ledger's lines: the sixteen claims, then the A/A control."""
    path = STORE.with_name(f"{STORE.name}.ledger.csv")
    with open(path, newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def claimed() -> list[dict[str, str]]:
    """The lines of the claims, without the control."""
    return [line for line in ledger() if line["claim"].isdecimal()]


def amount(value: str | float, unit: str) -> str:
    """An effect for people: +0.12, or ×0.70 where it is the log2 of a quotient."""
    if value == "":
        return "–"
    if unit.startswith("log2 of "):
        return f"×{2 ** float(value):.3g}"
    return f"{float(value):+.2g}".replace("-", "−")


def measured(line: Mapping[str, str]) -> list[str]:
    """Effect, interval, unit, runs, what could have been seen, and the verdict."""
    unit = line["unit"]
    effect, low, high = (amount(line[k], unit) for k in ("effect", "low", "high"))
    seen = amount(line["detectable"], unit).lstrip("+")
    said = line["verdict"] + (f": {line['why']}" if line["why"] else "")
    runs = f"{line['starts']}, {line['runs']}"
    return [
        effect, f"{low} to {high}", unit.removeprefix("log2 of "), runs, seen, said,
    ]  # fmt: skip


HEAD = (
    "effect",
    "95 % interval",
    "unit",
    "warm starts, pairs or runs",
    "detectable",
    "verdict",
)


def quote(*numbers: int) -> Markdown:
    """These claims' lines of the ledger."""
    own = [line for line in claimed() if int(line["claim"]) in numbers]
    rows = [[f"{c['claim']} · {c['title']}", *measured(c)] for c in own]
    return Markdown(rows_of(("claim", *HEAD), rows))


def whole() -> Markdown:
    """The ledger, each line linked to its chapter, with the command that runs it."""
    home = {n: f"{name}.ipynb" for name, own in CHAPTERS.items() for n in own}
    rows = []
    for line in claimed():
        n = int(line["claim"])
        chapter = f"[{home[n][:2]}]({home[n]})"
        command = f"`evidence run --claims {n}`"
        rows.append([f"{n} · {line['title']}", *measured(line), chapter, command])
    return Markdown(rows_of(("claim", *HEAD, "chapter", "command"), rows))


def control() -> Markdown:
    """The A/A control's lines: one algorithm under two names."""
    own = [line for line in ledger() if not line["claim"].isdecimal()]
    rows = [
        [
            line["title"].partition(": ")[2],
            *(f"{float(line[k]):+.3f}" if line[k] else "–" for k in _NUMBERS),
            line["verdict"],
        ]
        for line in own
    ]
    return Markdown(rows_of(("outcome", "effect", "low", "high", "verdict"), rows))


_NUMBERS = ("effect", "low", "high")


def rows_of(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
