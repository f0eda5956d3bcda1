"""Exercises of chapter 12: an interval, an invented paper, pseudo-replication."""

import math

from course.kit.exercise import Exercise


def starts_needed(sd_starts: float, sd_seeds: float, seeds: int, effect: float) -> int:
    """A start's mean varies by σ² + s²/m, and 2.8 standard errors make the effect."""
    of_a_start = sd_starts**2 + sd_seeds**2 / seeds
    return math.ceil((1.96 + 0.84) ** 2 * of_a_start / effect**2)


def interval(by_start, t):
    """The mean of the starts' means, and Student's interval around it."""
    means = [sum(d) / len(d) for d in by_start.values()]
    n, effect = len(means), sum(means) / len(means)
    sd = math.sqrt(sum((x - effect) ** 2 for x in means) / (n - 1))
    half = t(n) * sd / math.sqrt(n)
    return effect, effect - half, effect + half


def _student(n):
    """0.975 quantiles of Student's t for two to six observations, and more."""
    known = {1: math.inf, 2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}
    return known.get(n, 1.96 + 2.4 / n)


_STARTS = {0: [0.1, 0.3], 1: [0.9, 0.7], 2: [0.4, 0.5, 0.6]}

TYPED = (
    Exercise(
        "12.interval",
        solution=interval,
        cases=(
            (_STARTS, _student),
            ({5: [1.0, 2.0], 6: [3.0, 5.0]}, _student),
            ({i: [0.1 * i, 0.2] for i in range(5)}, _student),
        ),
        mistakes={
            "You count runs. Average over the seeds of a start first, and count "
            "starts.": {
                "sum(d) / len(d) for d in by_start.values()": (
                    "x for d in by_start.values() for x in d"
                )
            },
            "The first seed of each start is only a part of what you know: average "
            "over its seeds.": {"sum(d) / len(d)": "d[0]"},
            "That is the spread of the starts. Divide it by √n for that of their "
            "mean.": {" / math.sqrt(n)": ""},
            "Divide by √n, not by n.": {"math.sqrt(n)": "n"},
            "Give t the number of starts.": {"= t(n)": "= t(n - 1)"},
            "The standard deviation of a sample divides by n − 1.": {
                "/ (n - 1)": "/ n"
            },
            "That is the variance: take its root.": {"math.sqrt(sum": "(sum"},
            "Your interval is twice as wide: the half-width is t · sd / √n.": {
                "= t(n)": "= 2 * t(n)"
            },
        },
    ),
)

EXERCISES = (
    Exercise(
        "12.1",
        solution=3,
        why="Five warm starts, the declared outcome, an interval beyond the threshold.",
        choices=(1, 2, 3, 4, 5),
        mistakes={
            "Row 1: one warm start is one observation, however many seeds it has.": 1,
            "Row 2: the best of nine outcomes was chosen after the runs.": 2,
            "Row 4: there is an effect, but only a tenth of the size that was "
            "declared to matter.": 4,
            "Row 5: one interval contains 0 and the other does not, but this says "
            "nothing about their difference.": 5,
        },
    ),
    Exercise(
        "12.2",
        solution=3.2,
        decimals=1,
        why="√(1/5 + 1/100) against √(2/100).",
        mistakes={
            "That would be true if warm starts did not differ, but they differ as "
            "much as seeds do.": 1.0,
            "That is √20, which would be true if seeds did not differ at all.": 4.5,
            "The question asks for the root of the variance.": 10.5,
            "It is the other way round: the true error is the larger one.": 0.3,
        },
    ),
    Exercise(
        "12.3",
        solution=2,
        decimals=0,
        why="From about 21e-4 to 5.7e-4: a factor of 3.7, which is 1.9 doublings.",
        mistakes={
            "That is the factor, or the number of doublings from 1 update to 16. By "
            "how many doublings does the breaking rate fall?": 4,
            "That is from one update to four.": 1,
            "That is the difference of the two rates, in 1e-4.": 15,
        },
    ),
    Exercise(
        "12.4",
        lines=8,
        solution="6c",
        why="The runs of all warm starts are put into one list, and each counts as an "
        "independent observation.",
        mistakes={
            "Line 5 is right: runs of one start and seed met the same problems, so "
            "they are compared in pairs.": "5a",
            "Line 8 is right for independent observations. Which line claims that they "
            "are?": "8b",
            "Line 7 is right for observations that are independent. Which line claims "
            "that they are?": "7c",
            "Line 2 is right: one K and one rate, the same for both.": "2d",
        },
    ),
    Exercise(
        "12.5",
        solution=starts_needed,
        cases=(
            (0.04, 0.05, 2, 0.03),
            (0.04, 0.05, 20, 0.03),
            (0.01, 0.12, 4, 0.05),
            (0.08, 0.02, 1, 0.1),
        ),
        mistakes={
            "You count runs as if starts did not differ. Then more seeds would be "
            "enough, but they are not.": (
                lambda b, s, m, e: math.ceil(2.8**2 * (b**2 + s**2) / m / e**2)
            ),
            "That is the number of runs. How many warm starts is it?": (
                lambda b, s, m, e: m * starts_needed(b, s, m, e)
            ),
            "The spread of the starts is missing, and no number of seeds removes it.": (
                lambda b, s, m, e: math.ceil(2.8**2 * s**2 / m / e**2)
            ),
            "The spread of the seeds is averaged over the seeds of a start: divide its "
            "square by m.": (
                lambda b, s, m, e: math.ceil(2.8**2 * (b**2 + s**2) / e**2)
            ),
            "Standard deviations do not add up; their squares do.": (
                lambda b, s, m, e: math.ceil(
                    2.8**2 * (b + s / math.sqrt(m)) ** 2 / e**2
                )
            ),
            "That n finds the effect every other time: add 0.84 for the power.": (
                lambda b, s, m, e: math.ceil(1.96**2 * (b**2 + s**2 / m) / e**2)
            ),
            "The standard error falls with √n: square the quotient.": (
                lambda b, s, m, e: math.ceil(2.8 * math.sqrt(b**2 + s**2 / m) / e)
            ),
            "Round up: with fewer starts the power is below 0.8.": (
                lambda b, s, m, e: math.floor(2.8**2 * (b**2 + s**2 / m) / e**2)
            ),
        },
    ),
)
