"""What runs say about a difference, when they come in clusters.

Runs from one warm start resemble each other, so a warm start is one observation,
however many seeds were run from it. An effect is the mean over warm starts of their own
means, its interval Student's t over them:

    d̄ ± t(0.975, n − 1) · s / √n,   n warm starts

With five of them that covers the truth in 95 of 100 repetitions if the means are about
normal; a percentile bootstrap of five does in some 84 (a test repeats both).
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scipy import special

from refimpl.validation import UserError

POWER = 0.8
"""of the smallest effect that is called detectable"""


def holms(p: Sequence[float]) -> list[float]:
    """Holm's corrected p-values (Holm 1979): below 0.05, an effect excludes 0 at a risk
    of 5 % that any of them all does so by chance."""
    order = sorted(range(len(p)), key=p.__getitem__)
    corrected, most = [0.0] * len(p), 0.0
    for rank, at in enumerate(order):
        most = max(most, min(1.0, (len(p) - rank) * p[at]))
        corrected[at] = most
    return corrected


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Corrected p-values (Benjamini & Hochberg 1995): of the effects below 0.05, one in
    twenty excludes 0 by chance."""
    from scipy.stats import false_discovery_control  # a second, and rarely asked

    return [float(x) for x in false_discovery_control(p)] if p else []


class Estimate(NamedTuple):
    """An effect with its 95 % interval; `runs` in `starts` clusters.

    `detectable`: the true effect that this many starts with this spread would tell from
    0 four times in five. NaN where there are fewer than two starts.
    """

    effect: float
    low: float
    high: float
    starts: int
    runs: int
    detectable: float
    p: float

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)


def estimate(differences: Mapping[int, list[float]]) -> Estimate:
    """The mean of `differences`, by warm start, and what is known of it.

    Starts weigh the same, whatever number of seeds each has. `p` is two-sided, of no
    difference. Raises `UserError` if there is no difference at all.
    """
    means = [
        math.fsum(values) / len(values) for values in differences.values() if values
    ]
    if not means:
        raise UserError("there must be at least one difference, got none")
    runs, starts = sum(map(len, differences.values())), len(means)
    effect = math.fsum(means) / starts
    if starts < 2:
        unknown = math.nan
        return Estimate(effect, unknown, unknown, starts, runs, unknown, unknown)
    error = math.sqrt(
        math.fsum((m - effect) ** 2 for m in means) / (starts - 1) / starts
    )
    if error == 0:  # all alike
        return Estimate(effect, effect, effect, starts, runs, 0.0, float(effect == 0))
    t = functools.partial(special.stdtrit, starts - 1)  # quantiles of Student's t
    half = t(0.975) * error
    p = 2 * special.stdtr(starts - 1, -abs(effect) / error)
    detectable = (t(0.975) + t(POWER)) * error
    return Estimate(
        effect, effect - half, effect + half, starts, runs, detectable, float(p)
    )
