"""Find the rows of chapter 11's table "From symptom to cause" that fit a log.

The rules are data (`symptoms.toml`). A check reads one fact about a column and compares
it with a limit. The facts are few: the value before training, the end, the best window
between them, whether the column still moves, its largest row, and where it breaks. Rows
are listed in the order of these places, because a cause precedes its consequences. Rows
whose columns are not in the log are reported as not judged. A cause that another column
contradicts gives way to the next one (`instead`).
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
        self.few, self.half = max(1, n // 20), max(1, n // 2)
        self.calm = [median(x[max(0, i - near) : i + near + 1]) for i in range(n)]
        sums = [0.0, *accumulate(self.calm)]
        self.means = [(b - a) / k for a, b in zip(sums, sums[k:])]
        self.start, self.late = fmean(self.calm[: self.few]), self.means[-1]
        self.best = max(self.start, *self.means)
        self.size = max(map(abs, x)) or 1.0
        self.halves = fmean(self.calm[: self.half]), fmean(self.calm[-self.half :])

    def error(self, a: int, b: int) -> float:
        """Return the standard error of the difference between means of a and b rows.

        Neighbouring rows are not independent. So a mean is at least as uncertain as
        windows vary among each other.
        """
        least = noise(self.means[:: self.k]) if len(self.x) >= 40 else 0.0
        sigma = noise(self.x)
        return math.hypot(*(max(sigma / math.sqrt(rows), least) for rows in (a, b)))

    def errors(self, change: float, a: int, b: int) -> float:
        """Return a change between means of a and b rows in standard errors."""
        if abs(change) <= 1e-9 * self.size:  # what rounding leaves
            return 0.0
        error = self.error(a, b)
        return change / error if error else math.copysign(math.inf, change)

    def reached(self, low: int, base: float, sign: int, share: float) -> int:
        """Return the row in which a monotone fit has gone a share of the way from
        `base`, in row `low`, to the end; upwards, or with sign −1 downwards."""
        fit = monotone([sign * v for v in self.calm[low:]])
        return low + bisect_left(fit, base + share * (sign * self.late - base))

    def onset(self, sign: int) -> int:
        """Return the row from which the column rises (sign 1) or falls (−1) to its end;
        row 0 if that may be noise.

        It comes after the lowest window. The rows where 0.1 and 0.6 of the way are gone
        are well known, and the straight line through both leads back to the onset, of a
        jump as of a slope.
        """
        means = [sign * m for m in self.means]
        low = means.index(min(means))
        base = means[low] if low else min(means[0], sign * self.start)
        if self.errors(means[-1] - base, self.k, self.k) < 2:
            return 0
        near, far = (self.reached(low, base, sign, share) for share in (0.1, 0.6))
        return max(low, near - (far - near) // 5)


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
    sigma = min(median(steps) / 0.954, median(bends) / 1.652) or fmean(bends) / 1.954
    return 0.0 if sigma < 1e-9 * max(map(abs, x)) else sigma


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


def times(value: float, base: float) -> float:
    """Return a value in multiples of `base`; infinite above a base of 0."""
    return value / base if base > 0 else math.inf if value > base else 1.0


def drift(c: Column) -> float:
    """Return by how much the halves may differ, as a share of the largest window;
    infinite if they do by more than two standard errors."""
    change, error = c.halves[1] - c.halves[0], c.error(c.half, c.half)
    if abs(c.errors(change, c.half, c.half)) > 2:
        return math.inf
    return (abs(change) + error) / (max(map(abs, c.means)) or 1.0)


def fall(c: Column) -> float:
    """Return what the end has lost since the best window, as a share of the largest
    size; 0 if that may be noise.

    The proof is four standard errors, because the best of many windows is compared; two
    and a half if a quarter of the size is lost, one if half of it is. If a window has
    three rows or fewer, all of the last must lie below.
    """
    lost = c.best - c.late
    few = c.k <= 3 and any(c.best - v < lost / 4 for v in c.x[-c.k :])
    proof = 1 if lost > c.size / 2 else 2.5 if lost > c.size / 4 else 4
    errors = c.errors(lost, c.few if c.best == c.start else c.k, c.k)
    return 0.0 if few or errors <= proof else lost / c.size


def settled(c: Column) -> float:
    """Return the share of the rows after which 0.85 of the way to the end is gone."""
    up = 1 if c.late > c.start else -1
    return c.reached(0, up * c.start, up, 0.85) / len(c.x)


def zeros(c: Column) -> float:
    """Return the share of zeros in the last third."""
    return fmean(v == 0 for v in c.x[-max(1, len(c.x) // 3) :])


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
    "zeros": (zeros, "is 0 in {q:.0%} of the last third"),
    "factor": (lambda c: times(c.late, c.start), FROM_TO),
    "since first": (
        lambda c: times(c.late, c.x[0]),
        "was {c.x[0]:.3g} first, is {c.late:.3g}",
    ),
    "gain": (lambda c: (c.late - c.start) / c.size, FROM_TO),
    "rise": (lambda c: c.errors(c.late - c.start, c.few, c.k), FROM_TO),
    "climb": (lambda c: c.errors(max(c.means) - c.start, c.few, c.k), FROM_TO),
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
    """A row that fits, the log row where it begins, and why."""

    row: Row
    since: int
    words: str

    @property
    def harmless(self) -> bool:
        """True if the symptom may be intended."""
        return self.row.get("harmless", False)


class Fit(NamedTuple):
    """A column that was judged, from which row on it fits, and in words, if it does."""

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
    if not only or any(fact(log, name) for name in check.get("unless", [])):
        return []
    but = check.get("unless then", [])
    found = [fit for fit in found if fit.words]
    return [f for f in found if not any(fact(log.after(f.since), name) for name in but)]


def judge(log: Log, check: Row, key: str) -> Fit | None:
    """Judge one column; None for too few numbers."""
    read, cells = check["read"], log.seen(key)
    if read == "broken":
        given = enumerate(log.columns[key])
        cells = [(i, float(not math.isfinite(v))) for i, v in given if v is not None]
    if len(cells) < check.get("rows", 2) or ("first" in read and not log.whole):
        return None
    rows, x = zip(*cells)
    column, (measure, words) = measured(x), READ[read]
    q, sign = measure(column), 1 if "over" in check else -1
    limit = check.get("over", check.get("under"))
    if sign * (q - limit) <= 0 or column.size < check.get("least", 0):
        return Fit(key, 0, "")
    windows = column.means if read == "best" else [abs(v) for v in x]
    size = spikes(x) if read == "spike" else windows
    top = size.index(max(size))
    if read in ("best", "largest", "spike", "broken"):  # one row or window is enough
        beyond = (i for i, v in enumerate(size) if sign * (v - limit) > 0)
        since = rows[next(beyond, 0)]
    else:
        level = read in ("first", "usual", "late", "zeros")
        begun = level and sign * (column.start - limit) > 0
        place = 0 if begun else column.onset(-1 if read == "fall" else sign)
        since = (rows[place - 1] + rows[place] + 1) // 2 if place else rows[0]
    said = words.format(c=column, q=q, top=x[top], step=log.steps[rows[top]])
    return Fit(key, since, f"{log.called[key]} {said}")


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
    found, stages = [], DATA["stages"]
    for row in DATA["row"]:
        judged = [fit for c in row.get("checks", []) for fit in fits(log, c) or []]
        # If one column fits two checks, the first is reported.
        words = {fit.key: fit.words for fit in judged[::-1]}
        if judged:
            others = (o for o in row.get("instead", []) if holds(log, o["only"]))
            since = min(fit.since for fit in judged)
            said = "; ".join([*words.values()][::-1])
            found.append(Finding(row | next(others, {}), since, said))

    def place(one: Finding) -> tuple[bool, float]:
        of = one.row["checks"][0]["of"]
        stage = next((i for i, columns in enumerate(stages) if of in columns), 2)
        stage = one.row.get("stage", stage)
        return one.harmless, one.since + stage / len(stages) * len(log.steps) / 10

    return sorted(found, key=place)


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
    lines += log.notes
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
