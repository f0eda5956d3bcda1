"""Find the rows of chapter 11's table "From symptom to cause" that fit a log.

The rules are data (`symptoms.toml`). A check reads one fact about a column and compares
it with a limit. The facts are few: the value before training, the end, the best window
between them, whether the column still moves, its largest row, and where it breaks. Rows
are listed in the order in which they begin, because a cause precedes its consequences.
Rows whose columns are not in the log are reported as not judged. A cause that another
column contradicts gives way to the next one (`instead`).
"""

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from statistics import fmean, median
from typing import NamedTuple

from refimpl.interop.logs import DATA, Log, Row

UNSEEN = (
    "No log shows what the answers say: read ten of them with their rewards. Nor does "
    "it show where in an answer sampler and trainer differ, or what an MoE's routers "
    "do."
)


class Column:
    """The finite numbers of a column, the value before training, and the means of all
    windows.

    A window has a tenth of the rows; in short columns four, or a quarter. From 40 rows
    on, a median of five removes single wild rows, which `largest` and `spike` read.
    """

    def __init__(self, x: Sequence[float]) -> None:
        self.x, n, near = x, len(x), 2 if len(x) >= 40 else 0
        self.k = k = max(n // 10, min(4, n // 4), 1)
        self.few = max(1, n // 20)
        self.calm = [median(x[max(0, i - near) : i + near + 1]) for i in range(n)]
        sums = [0.0, *accumulate(self.calm)]
        self.means = [(b - a) / k for a, b in zip(sums, sums[k:])]
        self.start, self.late = fmean(self.calm[: self.few]), self.means[-1]
        self.best = max(self.start, *self.means)
        self.size = max(map(abs, self.calm)) or 1.0
        self.half = half = max(1, n // 2)
        self.halves = fmean(self.calm[:half]), fmean(self.calm[-half:])
        self.noise, self.least = noise(x), noise(self.means[::k]) if near else 0.0

    def error(self, a: int, b: int) -> float:
        """Return the standard error of the difference between means of a and b rows.

        Neighbouring rows are not independent. So a mean is at least as uncertain as
        windows vary among each other.
        """
        return math.hypot(*(max(self.noise / math.sqrt(n), self.least) for n in (a, b)))

    def proven(self, change: float, a: int, b: int, errors: float) -> float:
        """Return a change between means of a and b rows as a share of the column's
        size; 0 if it may be noise or rounding."""
        share = change / self.size
        real = abs(share) > 1e-9 and abs(change) > errors * self.error(a, b)
        return share if real else 0.0

    def crossing(self, low: int, value: float, sign: int) -> int:
        """Return the first row from `low` on in which a monotone fit, rising or with
        sign −1 falling, has reached `value`."""
        fit = monotone([sign * v for v in self.calm[low:]])
        return low + bisect_left(fit, sign * value)

    def onset(self, sign: int) -> int:
        """Return the row from which the column rises (sign 1) or falls (−1) to its end;
        row 0 if that may be noise.

        It comes after the lowest window. A jump is where much of the way is gone at
        once. On a slope, the straight line through the rows where about 0.3 and 0.7 of
        the way are gone leads back to the onset.
        """
        means = [sign * m for m in self.means]
        low = means.index(min(means))
        base = sign * (means[low] if low else min(means[0], sign * self.start))
        way = self.late - base
        if not self.proven(way, self.k, self.k, 2):
            return 0
        shares = (0.2, 0.3, 0.4, 0.6, 0.7, 0.8)
        gone = [self.crossing(low, base + share * way, sign) for share in shares]
        if gone[5] - gone[2] <= len(self.x) / 40:
            return gone[2]
        near, far = fmean(gone[:3]), fmean(gone[3:])
        return max(low, round(near - (far - near) * 0.85))


measured = lru_cache(maxsize=256)(Column)  # several checks read one column


def noise(x: Sequence[float]) -> float:
    """Return the standard deviation σ of single rows, estimated from neighbours.

    The median of first differences is 0.6745 √2 σ, also if the level jumps once, and
    that of second differences 0.6745 √6 σ, also in a trend; the smaller estimate
    counts. Where most of them are 0, the mean of second differences, √(2/π) √6 σ, takes
    their place.
    """
    steps = [abs(b - a) for a, b in pairwise(x)] or [0.0]
    bends = [abs(a - 2 * b + c) for a, b, c in zip(x, x[1:], x[2:])] or [0.0]
    return min(median(steps) / 0.954, median(bends) / 1.652) or fmean(bends) / 1.954


def monotone(x: Sequence[float]) -> list[float]:
    """Return the rising series with the least squared distance from x."""
    pools: list[tuple[float, int]] = []  # means, and of how many rows
    for mean in x:
        rows = 1
        while pools and pools[-1][0] >= mean:
            before, more = pools.pop()
            mean = (mean * rows + before * more) / (rows + more)
            rows += more
        pools.append((mean, rows))
    return [mean for mean, rows in pools for _ in range(rows)]


def factor(c: Column, base: float) -> float:
    """Return the end in multiples of `base`; infinite above a base of 0."""
    return c.late / base if base > 0 else math.inf if c.late > base else 1.0


def drift(c: Column) -> float:
    """Return by how much the halves may differ, as a share of the largest window;
    infinite if they do by more than two standard errors."""
    change = c.halves[1] - c.halves[0]
    if c.proven(change, c.half, c.half, 2):
        return math.inf
    return (abs(change) + c.error(c.half, c.half)) / (max(map(abs, c.means)) or 1.0)


def fall(c: Column) -> float:
    """Return what the end has lost since the best window, as a share of the column's
    size; 0 if that may be noise.

    The proof is four standard errors, because the best of many windows is compared; two
    and a half if a quarter of the size is lost, one if half of it is. If a window has
    three rows or fewer, all of the last must lie below.
    """
    lost = c.best - c.late
    if c.k <= 3 and any(c.best - v < lost / 4 for v in c.x[-c.k :]):
        return 0.0
    errors = 1 if lost > c.size / 2 else 2.5 if lost > c.size / 4 else 4
    return c.proven(lost, c.few if c.best == c.start else c.k, c.k, errors)


def settled(c: Column) -> float:
    """Return the share of the rows after which 0.85 of the way to the end is gone."""
    way = c.late - c.start
    return c.crossing(0, c.start + 0.85 * way, 1 if way > 0 else -1) / len(c.x)


def spikes(x: Sequence[float]) -> list[float]:
    """Return the size of each row in multiples of what was usual before.

    Four in five of the earlier rows are no larger than what is usual, which is at least
    the median of the rows that are not 0. Rows 0 to 2 are 1.
    """
    size = [abs(v) for v in x]
    least = median([v for v in size if v] or [math.inf])
    before, found = sorted(size[:3]), [1.0] * len(size[:3])
    for v in size[3:]:
        found.append(v / max(before[int(0.8 * len(before))], least))
        insort(before, v)
    return found


FROM_TO = "goes from {c.start:.3g} to {c.late:.3g}"
READ: dict[str, tuple[Callable[[Column], float], str]] = {
    "first": (lambda c: c.x[0], "is {q:.3g} in the first row"),
    "usual": (lambda c: median(c.x), "is {q:.3g} in the median row"),
    "late": (lambda c: c.late, "is {q:.3g} at the end"),
    "zeros": (lambda c: c.late, "is 0 in {q:.0%} of the last rows"),
    "factor": (lambda c: factor(c, c.start), FROM_TO),
    "since first": (lambda c: factor(c, c.x[0]), "was {c.x[0]:.3g}, is {c.late:.3g}"),
    "gain": (lambda c: c.proven(c.late - c.start, c.few, c.k, 3), FROM_TO),
    "climb": (lambda c: c.proven(c.best - c.start, c.few, c.k, 4), FROM_TO),
    "room": (lambda c: (c.late - c.start + c.error(c.few, c.k)) / c.size, FROM_TO),
    "drift": (drift, "is {c.halves[0]:.3g} in the first half, {c.halves[1]:.3g} later"),
    "fall": (fall, "falls from {c.best:.3g} to {c.late:.3g}"),
    "settled": (settled, FROM_TO),
    "best": (lambda c: c.best, "reaches {q:.3g} from step {step:g} on"),
    "largest": (lambda c: max(map(abs, c.x)), "is at most {top:.3g}, at step {step:g}"),
    "spike": (
        lambda c: max(spikes(c.x)),
        "is {top:.3g} at step {step:g}, {q:.3g} times what was usual before",
    ),
    "broken": (lambda c: fmean(c.x), "is no finite number in {q:.1%} of the rows"),
}
"""What a check can read: as a number, and in words."""


class Finding(NamedTuple):
    """A row that fits, the log row where it begins, and why; `harmless` if it may be
    intended."""

    row: Row
    since: int
    words: str
    harmless: bool


class Fit(NamedTuple):
    """A judged column: from which row on it fits, and in words ("" if it does not)."""

    key: str
    since: int
    words: str


def fits(log: Log, check: Row) -> list[Fit] | None:
    """Return the columns that a check fits; None if it cannot be judged."""
    only = holds(log, check.get("only", []))
    judged = [judge(log, check, key) for key in log.keys(check["of"])]
    found = [fit for fit in judged if fit is not None]
    if only is None or not found:
        return None
    right = only and not any(fact(log, name) for name in check.get("unless", []))
    return [fit for fit in found if right and fit.words]


def judge(log: Log, check: Row, key: str) -> Fit | None:
    """Judge one column; None for too few numbers."""
    read, cells = check["read"], log.seen(key)
    if read == "broken":
        cells = broken(log, key)
    elif read == "zeros":
        cells = [(i, float(v == 0)) for i, v in cells]
    if len(cells) < check.get("rows", 2) or ("first" in read and not log.whole):
        return None
    rows, x = zip(*cells)
    column, (measure, words) = measured(x), READ[read]
    q, sign = measure(column), 1 if "over" in check else -1
    limit = check.get("over", check.get("under"))
    windows = column.means if read == "best" else [abs(v) for v in x]
    size = spikes(x) if read == "spike" else windows
    top = size.index(max(size))
    if sign * (q - limit) <= 0 or abs(x[top]) < check.get("least", 0):
        return Fit(key, 0, "")
    if read in ("best", "largest", "spike", "broken"):  # one row or window is enough
        place = next((i for i, v in enumerate(size) if sign * (v - limit) > 0), 0)
    elif read in ("usual", "late", "zeros"):
        place = column.crossing(0, limit, sign) % len(x)
    elif read in ("factor", "since first"):  # a factor is a difference of logs
        least = 1e-9 * column.size
        place = Column([math.log(max(v, least)) for v in x]).onset(sign)
    else:
        place = 0 if read in ("first", "drift") else column.onset(-1)
    since = (rows[place - 1] + rows[place] + 1) // 2 if place else rows[0]
    said = words.format(c=column, q=q, top=x[top], step=log.steps[rows[top]])
    return Fit(key, since, f"{log.called[key]} {said}")


def broken(log: Log, key: str) -> list[tuple[int, float]]:
    """Return 1 for each cell that is NaN or infinite, and 0 for the others.

    NaN is a gap in the gradient's norm if the reward is NaN as well; elsewhere if a
    number follows, or if the reward is NaN in a row with an evaluation.
    """
    blank = {i for i, v in enumerate(log.columns.get("reward", [])) if v != v}
    if key != "grad_norm":
        tests = log.keys("accuracy") + log.keys("eval_reward")
        blank &= {i for test in tests for i, _ in log.seen(test)}
        blank |= {*range(max((i for i, _ in log.seen(key)), default=0))}
    cells = [(i, v) for i, v in enumerate(log.columns[key]) if v is not None]
    return [(i, float(math.isinf(v) or (v != v and i not in blank))) for i, v in cells]


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
    """Return the rows that fit, in order; symptoms that may be intended come last.

    A trend is dated within a tenth of the log. So what may have begun together is
    listed in the order of `stages`: first what can cause the others.
    """
    found, ordered = [], []
    for row in DATA["row"]:
        judged = [fit for c in row.get("checks", []) for fit in fits(log, c) or []]
        # If one column fits two checks, the first is reported.
        words = {fit.key: fit.words for fit in judged[::-1]}
        if judged:
            others = (o for o in row.get("instead", []) if holds(log, o["only"]))
            row = row | next(others, {})
            since = min(fit.since for fit in judged)
            said = "; ".join([*words.values()][::-1])
            found.append(Finding(row, since, said, row.get("harmless", False)))
    while found:
        together = min(one.since for one in found) + len(log.steps) / 10
        one = min((f for f in found if f.since <= together), key=stage)
        found.remove(one)
        ordered.append(one)
    return sorted(ordered, key=lambda one: one.harmless)


def stage(one: Finding) -> tuple[float, int]:
    """Return the place of a finding among those that may have begun together."""
    of, stages = one.row["checks"][0]["of"], DATA["stages"]
    usual = next((i for i, s in enumerate(stages) if of in s), stages.index([]))
    return one.row.get("stage", usual), one.since


def unjudged(log: Log) -> dict[str, list[str]]:
    """Return the rows that this log cannot decide, with the columns that they need."""
    return {
        row["symptom"]: list(dict.fromkeys(check["of"] for check in row["checks"]))
        for row in DATA["row"]
        if "checks" in row and all(fits(log, check) is None for check in row["checks"])
    }


def report(log: Log) -> str:
    """Format the findings, and the rows that could not be judged, for the terminal."""
    steps, found = log.steps, findings(log)
    lines = [f"{log.path}: {len(steps)} rows, steps {steps[0]:g} to {steps[-1]:g}"]
    if all(finding.harmless for finding in found):
        lines.append("No symptom was found, which is no proof that all is well.")
    for place, finding in enumerate(found, 1):
        row, begin = finding.row, f"from step {steps[finding.since]:g}"
        fine = "fine if intended, " if finding.harmless else ""
        lines += [
            f"{place}. {row['symptom']}  ({fine}{begin})",
            f"   seen:   {finding.words}",
            f"   likely: {row['cause']} (chapter {row['chapter']})",
            f"   first:  {row['first']}",
            f"   then measure: {row['next']}",
        ]
    if missing := unjudged(log):
        lines.append("Not judged, because the columns are not in this log:")
        lines += [f"   {symptom}: {', '.join(of)}" for symptom, of in missing.items()]
    return "\n".join([*lines, UNSEEN])
