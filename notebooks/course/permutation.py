"""How easily chance alone sets two arms of runs apart: an exact permutation test.

The runs of the two arms are treated as unrelated, even where they share a seed.
(Flipping signs of paired differences would be another test. With five pairs it never
reaches p = 0.05, because its smallest p is 2/32.)
"""

from collections.abc import Sequence
from itertools import combinations
from math import isfinite
from statistics import fmean


def p_value(a: Sequence[float], b: Sequence[float]) -> float:
    """The share of all splits whose means differ at least as much as those of a and b.

    The runs are pooled and split in every possible way into groups of `len(a)` and
    `len(b)`, so the test is exact: it draws no random splits and assumes no shape of
    the distribution. It is two-sided.

    What it does assume is that under the null hypothesis the runs are exchangeable:
    independent, and of one distribution, in its spread as well as in its mean. p says
    how rare such a difference is then. It says nothing about the size of the
    difference, and it knows nothing of other comparisons made beside this one. It
    cannot fall below one in the number of splits (for equal sizes two, by symmetry):
    2/252 for five runs against five.

    Raises `ValueError` if a run is NaN or infinite.
    """
    pool = [*a, *b]
    if not all(map(isfinite, pool)):
        raise ValueError(f"every run needs a finite value, got {pool}")
    total = sum(pool)
    splits = [
        abs(fmean(part) - (total - sum(part)) / len(b))
        for part in combinations(pool, len(a))
    ]
    # The first split is a against b. Sums of the same numbers in another order round
    # differently, so a tie may come out a little smaller.
    least = splits[0] - 1e-12 * max(map(abs, pool))
    return fmean(gap >= least for gap in splits)
