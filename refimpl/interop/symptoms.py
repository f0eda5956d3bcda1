"""Find the rows of chapter 11's table "From symptom to cause" that fit a log.

The rules are data (`symptoms.toml`). A rule computes a number from a column and
compares it with a limit. The strength of a row goes from 0, at the limit, to 1. It is
the share of the way from the limit to the worst possible value if there is one, else
1 − limit / number. Rows on held-out problems come first. Then come those that began
earlier, because a cause precedes its consequences; among those that began together, the
stronger ones come first. Rules whose columns are not in the log are reported as not
judged. A cause that another column contradicts gives way to the next one (`instead`).
"""

import math
from bisect import insort
from collections.abc import Callable
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import NamedTuple

from refimpl.interop.logs import DATA, Log, Row

Series = list[float]

TOGETHER = 20
"""Findings that begin in the same twentieth of a run count as simultaneous."""
UNSEEN = (
    "No log shows what the answers say: read ten of them with their rewards. Nor does "
    "it show where in an answer sampler and trainer differ, or what an MoE's routers "
    "do."
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


def quarter(x: Series) -> int:
    """Return the number of rows in a quarter."""
    return max(1, len(x) // 4)


def early(x: Series) -> float:
    """Return the mean of the first quarter; NaN if it holds both infinities."""
    first = x[: quarter(x)]
    return math.nan if {math.inf, -math.inf} <= {*first} else fmean(first)


def late(x: Series) -> float:
    """Return the mean of the last quarter."""
    return early(x[::-1])


def times(x: Series, base: float) -> Series:
    """Return the series in multiples of `base`; infinite above a base of 0."""
    return [v / base if base > 0 else math.inf if v > base else 1.0 for v in x]


def error(x: Series) -> float:
    """Return the standard error of the difference of two quarters' means: σ √(2/k).

    The noise σ of a row is estimated from neighbours: the median of first differences
    is 0.6745 √2 σ, also if the level jumps once, and that of second differences
    0.6745 √6 σ, also in a trend; the smaller estimate counts. Where most of them are 0,
    the mean of second differences, √(2/π) √6 σ, takes their place.
    """
    steps = [abs(b - a) for a, b in pairwise(x)]
    bends = [abs(a - 2 * b + c) for a, b, c in zip(x, x[1:], x[2:])] or [0.0]
    sigma = min(median(steps) / 0.954, median(bends) / 1.652) or fmean(bends) / 1.954
    exact = sigma < 1e-9 * max(map(abs, x))  # what rounding leaves
    return 0.0 if exact else sigma * math.sqrt(2 / quarter(x))


def in_noise(x: Series) -> Series:
    """Return the distance from the first quarter's mean, in standard errors."""
    usual, begin = error(x), early(x)
    change = [v - begin for v in x]
    return [c / usual if usual else c * math.inf if c else 0.0 for c in change]


def spikes(x: Series) -> Series:
    """Return the size of each row in multiples of what was usual before.

    Four in five of the earlier rows are no larger than what is usual, which is at least
    the median of the rows that are not 0. Rows 0 to 2 are 1.
    """
    size = [abs(v) for v in x]
    least = median([v for v in size if v] or [0.0])
    before: Series = []
    found = []
    for i, v in enumerate(size):
        usual = max(before[int(0.8 * i)], least) if i > 2 else v
        found += times([v], usual)
        insort(before, v)
    return found


def means(x: Series, k: int) -> Series:
    """Return the means of k consecutive rows, starting from each row in turn."""
    sums = [0.0, *accumulate(x)]
    return [(b - a) / k for a, b in zip(sums, sums[k:])]


def below(x: Series) -> Series:
    """Return how far each row lies below the best quarter before it, as a share of the
    largest size in the column; 0 if the end is not below it by more than the noise.

    The noise is four standard errors, because the best of many quarters is compared;
    two and a half if a quarter of the size is lost, one if half of it is. If a quarter
    has three rows or fewer, all of the last must lie below.
    """
    k, quarters = quarter(x), means(x, quarter(x))
    top, size = max(quarters), max(map(abs, x))
    end, lost = quarters.index(top) + k, top - quarters[-1]
    few = k <= 3 and any(top - v < lost / 4 for v in x[-k:])
    proof = 1 if lost > size / 2 else 2.5 if lost > size / 4 else 4
    if few or lost <= proof * error(x):
        return [0.0] * len(x)
    return [(top - v) / size if i >= end else 0.0 for i, v in enumerate(x)]


def turned(x: Series) -> Series:
    """Return `below` for a column that had risen before; 0 for any other."""
    risen = max(means(x, quarter(x))) - early(x) > 4 * error(x)
    return below(x) if risen else [0.0] * len(x)


def gain(x: Series) -> Series:
    """Return each row minus the first quarter's mean, in shares of the largest size."""
    size = max(map(abs, x)) or 1.0
    return [(v - early(x)) / size for v in x]


FROM_TO = "goes from {early:.3g} to {late:.3g}"
READ: dict[str, tuple[Callable[[Series], Series], Callable[[Series], float], str]] = {
    "first": (list, lambda x: x[0], "is {q:.3g} in the first row"),
    "early": (list, early, "is {q:.3g} in the first quarter"),
    "late": (list, late, "is {q:.3g} in the last quarter"),
    "largest": (lambda x: [*map(abs, x)], max, "reaches {top:.3g} at step {step:g}"),
    "constant": (
        list,
        lambda x: max(x) if max(x) == min(x) else math.inf,
        "is {q:.3g} in every row",
    ),
    "zeros": (
        lambda x: [float(v == 0) for v in x],
        fmean,
        "is 0 in {q:.0%} of the rows",
    ),
    "factor": (lambda x: times(x, early(x)), late, FROM_TO),
    "since first": (lambda x: times(x, x[0]), late, "was {x[0]:.3g} first, " + FROM_TO),
    "gain": (gain, late, FROM_TO),
    "fall": (below, late, "falls from {peak:.3g} to {late:.3g}"),
    "turn": (
        turned,
        late,
        "rises from {early:.3g} to {peak:.3g} and falls to {late:.3g}",
    ),
    "rise": (in_noise, late, FROM_TO + ", {errors}"),
    "move": (in_noise, lambda x: abs(late(x)), FROM_TO + ", {errors}"),
    "spike": (
        spikes,
        max,
        "is {top:.3g} at step {step:g}, {q:.3g} times what was usual before",
    ),
    "broken": (list, fmean, "is no finite number in {q:.1%} of the rows"),
}
"""Ways to read a column: per row, as one number for all rows, and in words."""


class Fit(NamedTuple):
    """A column that a check fits: how much, from which row on, and in words."""

    key: str
    strength: float
    since: int
    words: str


def fits(log: Log, check: Row) -> list[Fit] | None:
    """Return the columns that a check fits; None if it cannot be judged."""
    only = holds(log, check.get("only", []))
    judged = [judge(log, check, key) for key in log.keys(check["of"])]
    if only is None or all(one is None for one in judged):
        return None
    if not only or any(fact(log, name) for name in check.get("unless", [])):
        return []
    return [one for one in judged if one and one.strength > 0]


def judge(log: Log, check: Row, key: str) -> Fit | None:
    """Judge one column: strength 0 if it does not fit; None for too few numbers."""
    cells = log.seen(key)
    if check["read"] == "broken":
        given = enumerate(log.columns[key])
        cells = [(i, float(not math.isfinite(v))) for i, v in given if v is not None]
    begins = log.whole or "first" not in check["read"]
    if len(cells) < check.get("rows", 2) or not begins:
        return None
    rows, x = [i for i, _ in cells], [v for _, v in cells]
    by_row, as_one, words = READ[check["read"]]
    series, sign = by_row(x), 1 if "over" in check else -1
    q, limit = as_one(series), check.get("over", check.get("under"))
    # The first of several equal maxima.
    _, top, row = max(zip(series, x, rows), key=lambda cell: cell[0])
    if not sign * (q - limit) > 0 or abs(top) < check.get("least", 0):
        return Fit(key, 0.0, 0, "")
    least, most = sorted((abs(q), abs(limit)))
    strength = 1.0 if q * limit < 0 else 1 - least / most
    if "worst" in check:
        strength = (q - limit) / (check["worst"] - limit)
    beyond = [sign * (v - limit) > 0 for v in series]
    since = beyond.index(True) if True in beyond else 0
    if as_one is late or check["read"] == "zeros":  # a trend
        since = begin(beyond, quarter(x) // 2, check["read"] == "late") or since
    values = {"q": q, "x": x, "early": early(x), "late": late(x), "top": top}
    values["peak"] = max(means(x, quarter(x)))
    noise = f"{q:.1f} standard errors" if math.isfinite(q) else "where nothing varied"
    words = words.format(step=log.steps[row], errors=noise, **values)
    return Fit(key, strength, rows[since], f"{log.called[key]} {words}")


def begin(beyond: list[bool], k: int, at_once: bool) -> int:
    """Return where a trend begins: the first row beyond the limit (not row 0, unless
    `at_once`) after which most rows are, and most of the next k; 0 if there is none."""
    for i, yes in enumerate(beyond):
        near, rest = beyond[i : i + max(1, k)], beyond[i:]
        if yes and (i or at_once) and all(2 * sum(s) >= len(s) for s in (near, rest)):
            return i
    return 0


def holds(log: Log, names: list[str]) -> bool | None:
    """True if all these facts hold; None if one of them cannot be judged."""
    every = [fact(log, name) for name in names]
    return None if None in every else all(every)


def fact(log: Log, name: str) -> bool | None:
    """True if a fact of `symptoms.toml` holds. The first of its columns that the log
    has decides; None if it has none of them."""
    judged = (fits(log, check) for check in DATA["facts"][name])
    return next((bool(one) for one in judged if one is not None), None)


def findings(log: Log) -> list[Finding]:
    """Return the rows that fit, in order; symptoms that may be intended come last."""
    found, span = [], len(log.steps) / TOGETHER
    for row in DATA["row"]:
        judged = [fit for c in row["checks"] for fit in fits(log, c) or []]
        # If one column fits two checks, the first is reported.
        words = {fit.key: fit.words for fit in judged[::-1]}
        if judged:
            others = (o for o in row.get("instead", []) if holds(log, o["only"]))
            strength, since = (
                max(f.strength for f in judged),
                min(f.since for f in judged),
            )
            said = "; ".join([*words.values()][::-1])
            found.append(Finding(row | next(others, {}), strength, since, said))
    return sorted(
        found,
        key=lambda f: (
            f.harmless,
            not f.row.get("held_out", False),
            int(f.since / span),
            -f.strength,
        ),
    )


def unjudged(log: Log) -> dict[str, list[str]]:
    """Return the rows that this log cannot decide, with the columns that they need."""
    return {
        row["symptom"]: list(dict.fromkeys(check["of"] for check in row["checks"]))
        for row in DATA["row"]
        if all(fits(log, check) is None for check in row["checks"])
    }


def report(log: Log) -> str:
    """Format the findings, and the rows that could not be judged, for the terminal."""
    steps, found = log.steps, findings(log)
    lines = [f"{log.path}: {len(steps)} rows, steps {steps[0]:g} to {steps[-1]:g}"]
    lines += log.notes
    if all(finding.harmless for finding in found):
        lines.append("No symptom was found, which is no proof that all is well.")
    for place, finding in enumerate(found, 1):
        row, begin = finding.row, steps[finding.since]
        strength = f"strength {finding.strength:.2f}"
        how = "fine if intended" if finding.harmless else strength
        lines += [
            f"{place}. {row['symptom']}  ({how}, from step {begin:g})",
            f"   seen:   {finding.words}",
            f"   likely: {row['cause']} (chapter {row['chapter']})",
            f"   first:  {row['first']}",
            f"   then measure: {row['next']}",
        ]
    if missing := unjudged(log):
        lines.append("Not judged, because the columns are not in this log:")
        lines += [f"   {symptom}: {', '.join(of)}" for symptom, of in missing.items()]
    return "\n".join([*lines, UNSEEN])
