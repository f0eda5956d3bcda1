"""Solutions to the exercises of chapter 12."""

import math


def starts_needed(sd_starts: float, sd_seeds: float, seeds: int, effect: float) -> int:
    """A start's mean varies by σ² + s²/m, and 2.8 standard errors make the effect."""
    of_a_start = sd_starts**2 + sd_seeds**2 / seeds
    return math.ceil((1.96 + 0.84) ** 2 * of_a_start / effect**2)


OCTAVES = 2
"""From about 21e-4 to about 6e-4: a factor of 3.6, which is 1.8 doublings."""

TOO_SMALL = 3.2
"""√(1/5 + 1/100) against √(2/100)."""

LINE = 6
"""The runs of all warm starts are put into one list, and each counts for itself."""

ROW = 3
"""Five warm starts, the outcome of the abstract, an interval beyond the threshold."""
