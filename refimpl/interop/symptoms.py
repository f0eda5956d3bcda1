"""Find the rows of chapter 11's table "From symptom to cause" that fit a log.

The rules are data (`symptoms.toml`). A rule computes a number from a column and
compares it with a limit. The strength of a row goes from 0, at the limit, to 1. It is
the share of the way from the limit to the worst possible value if there is one, else
1 − limit / number. Rows that began earlier come first, because a cause precedes its
consequences; among those that began together, the stronger ones come first. Rules whose
columns are not in the log are reported as not judged.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from refimpl.interop.logs import DATA, Log, Row

Series = list[float]

TOGETHER = 20
"""Findings that begin in the same twentieth of a run count as simultaneous."""
UNSEEN = (
    "No log shows what the answers say: read ten beside their rewards. Nor where in an "
    "answer sampler and trainer differ, nor what a mixture of experts' routers do."
)


class Finding(NamedTuple):
    """A row that fits, its strength (0 to 1), the log row where it begins, and why."""

    row: Row
    strength: float
    since: int
    words: str

    @property
    def harmless(self) -> bool:
        """True if the symptom may be intended."""
        return self.row.get("harmless", False)


def early(x: Series) -> float:
    """The mean of the first quarter; NaN if it is infinite in both directions."""
    quarter = x[: max(1, len(x) // 4)]
    return math.nan if {math.inf, -math.inf} <= {*quarter} else fmean(quarter)


def late(x: Series) -> float:
    """The mean of the last quarter."""
    return early(x[::-1])


def times(x: Series, base: float) -> Series:
    """The series in multiples of `base`; infinite above a base of 0."""
    return [v / base if base > 0 else math.inf if v > base else 1.0 for v in x]


def in_noise(x: Series) -> Series:
    """The distance from the first quarter's mean, in standard errors of the difference
    of two such means.

    The noise σ of a row is estimated from the differences between neighbours: their
    median is 0.6745 √2 σ, so the error σ √(2/k) is this median times 1.483 / √k.
    """
    usual = median(abs(b - a) for a, b in pairwise(x))
    error, begin = 1.483 * usual / math.sqrt(max(1, len(x) // 4)), early(x)
    change = [v - begin for v in x]
    return [c / error if error else c * math.inf if c else 0.0 for c in change]


def spikes(x: Series) -> Series:
    """The series in multiples of the median of all earlier rows; 1 in rows 0 to 2."""
    return [times([v], median(x[:i]))[0] if i > 2 else 1.0 for i, v in enumerate(x)]


FROM_TO = "goes from {early:.3g} to {late:.3g}"
READ: dict[str, tuple[Callable[[Series], Series], Callable[[Series], float], str]] = {
    "first": (list, lambda x: x[0], "is {q:.3g} in the first row"),
    "early": (list, early, "is {q:.3g} in the first quarter"),
    "late": (list, late, "is {q:.3g} in the last quarter"),
    "largest": (lambda x: [*map(abs, x)], max, "reaches {top:.3g} at step {step:g}"),
    "factor": (lambda x: times(x, early(x)), late, FROM_TO),
    "since first": (lambda x: times(x, x[0]), late, "was {x[0]:.3g} first, " + FROM_TO),
    "rise": (in_noise, late, FROM_TO + ", {errors}"),
    "move": (in_noise, lambda x: abs(late(x)), FROM_TO + ", {errors}"),
    "spike": (spikes, max, "is {q:.3g} times its median before, at step {step:g}"),
    "broken": (list, fmean, "is no finite number in {q:.0%} of the rows"),
}
"""Ways to read a column: per row, as one number for all rows, and in words."""


def fits(log: Log, check: Row) -> tuple[float, int, str] | None:
    """Judge a check: strength (0: no fit), first row and words; None if not judged."""
    cells = log.seen(check["of"])
    if check["read"] == "broken":
        given = enumerate(log.columns.get(check["of"], []))
        cells = [(i, float(not math.isfinite(v))) for i, v in given if v is not None]
    only = "only" not in check or fact(log, check["only"])
    if len(cells) < 2 or only is None:
        return None
    rows, x = [i for i, _ in cells], [v for _, v in cells]
    by_row, as_one, words = READ[check["read"]]
    series, sign = by_row(x), 1 if "over" in check else -1
    q, limit = as_one(series), check.get("over", check.get("under"))
    excused = "unless" in check and fact(log, check["unless"])
    if not (sign * (q - limit) > 0 and only) or excused:
        return 0.0, 0, ""
    least, most = sorted((abs(q), abs(limit)))
    strength = 1.0 if q * limit < 0 else 1 - least / most
    if "worst" in check:
        strength = (q - limit) / (check["worst"] - limit)
    beyond = [sign * (v - limit) > 0 for v in series]
    # A trend begins where most rows from there on are beyond the limit; not at row 0.
    stays = [b and 2 * sum(beyond[i:]) >= len(x) - i for i, b in enumerate(beyond)]
    stays[0] &= check["read"] == "late"
    since = (stays if as_one is late and any(stays) else beyond).index(True)
    # The first of several equal maxima.
    _, top, row = max(zip(series, x, rows), key=lambda cell: cell[0])
    values = {"q": q, "x": x, "early": early(x), "late": late(x), "top": top}
    noise = f"{q:.1f} standard errors" if math.isfinite(q) else "where nothing varied"
    name = log.called.get(check["of"], check["of"])
    words = words.format(step=log.steps[row], errors=noise, **values)
    return strength, rows[since], f"{name} {words}"


def fact(log: Log, name: str) -> bool | None:
    """True if a fact of `symptoms.toml` holds; None if the log lacks its column."""
    judged = fits(log, DATA["facts"][name])
    return None if judged is None else judged[0] > 0


def findings(log: Log) -> list[Finding]:
    """The rows that fit, in order; symptoms that may be intended come last."""
    found, span = [], len(log.steps) / TOGETHER
    for row in DATA["row"]:
        judged = [fit for c in row["checks"] if (fit := fits(log, c)) and fit[0]]
        if judged:
            strengths, since, words = zip(*judged)
            found.append(Finding(row, max(strengths), min(since), "; ".join(words)))
    return sorted(found, key=lambda f: (f.harmless, int(f.since / span), -f.strength))


def unjudged(log: Log) -> dict[str, list[str]]:
    """The rows that this log cannot decide, with the columns that they need."""
    return {
        row["symptom"]: list(dict.fromkeys(check["of"] for check in row["checks"]))
        for row in DATA["row"]
        if all(fits(log, check) is None for check in row["checks"])
    }


def report(log: Log) -> str:
    """The findings, and the rows that could not be judged, as text for the terminal."""
    steps, found = log.steps, findings(log)
    lines = [f"{log.path}: {len(steps)} rows, steps {steps[0]:g} to {steps[-1]:g}"]
    if all(finding.harmless for finding in found):
        lines.append("Nothing is named as wrong, which is no proof that all is well.")
    for place, finding in enumerate(found, 1):
        row, begin = finding.row, steps[finding.since]
        strength = f"strength {finding.strength:.2f}"
        how = "right if meant" if finding.harmless else strength
        lines += [
            f"{place}. {row['symptom']}  ({how}, from step {begin:g})",
            f"   seen:   {finding.words}",
            f"   likely: {row['cause']} (chapter {row['chapter']})",
            f"   first:  {row['first']}",
            f"   then measure: {row['next']}",
        ]
    if missing := unjudged(log):
        lines.append("Not judged, because it is not in this log:")
        lines += [f"   {symptom}: {', '.join(of)}" for symptom, of in missing.items()]
    return "\n".join([*lines, UNSEEN])
