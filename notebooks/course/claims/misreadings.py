"""Misreadings of runs and intervals: chapter 12."""

import math
import statistics

from course.kit.misreading import Misreading


def error_of_runs(by_start):
    """The standard error of the mean, with every run as an observation."""
    runs = [run for of_start in by_start for run in of_start]
    return statistics.stdev(runs) / math.sqrt(len(runs))


def error_of_starts(by_start):
    """The standard error of the mean of the warm starts' own means."""
    means = [statistics.fmean(of_start) for of_start in by_start]
    return statistics.stdev(means) / math.sqrt(len(means))


def nothing_there(low, high, smallest):
    """Take an interval that contains 0 for a proof."""
    return "no effect" if low <= 0 <= high else "an effect"


def nothing_that_matters(low, high, smallest):
    """Only an interval within ± smallest rules out a relevant effect."""
    if -smallest < low and high < smallest:
        return "none that matters"
    return "undecided" if low <= 0 <= high else "an effect"


def one_and_not_the_other(a, b):
    """Two (effect, standard error): is one beyond 0 and the other not?"""
    return (abs(a[0]) > 1.96 * a[1]) != (abs(b[0]) > 1.96 * b[1])


def their_difference(a, b):
    """Two independent (effect, standard error): is their difference beyond 0?"""
    return abs(a[0] - b[0]) > 1.96 * math.hypot(a[1], b[1])


MISREADINGS = [
    Misreading(
        "claims_runs_are_independent",
        "Twenty runs are twenty observations.",
        "Runs from one warm start resemble each other. Differences between starts "
        "average out only over starts, so count the starts.",
        error_of_runs,
        error_of_starts,
    ),
    Misreading(
        "claims_not_seen_is_none",
        "The interval holds 0, so there is no effect.",
        "The interval also contains every other value between its ends. *None that "
        "matters* needs the whole interval within ±0.03.",
        nothing_there,
        nothing_that_matters,
    ),
    Misreading(
        "claims_one_significant",
        "One effect is significant and the other is not, so they differ.",
        "The difference has an interval of its own; for independent effects it is "
        "wider than either.",
        one_and_not_the_other,
        their_difference,
    ),
]
