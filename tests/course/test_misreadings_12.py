"""Misreadings of runs and intervals, held against the package."""

import math

import pytest

from course.misreadings import MISREADINGS
from refimpl.lab.claims import CLAIMS
from refimpl.lab.statistics import estimate

SPREAD = [[0.0, 0.2], [1.0, 1.2], [2.0, 2.2]]
"""Starts that are 1 apart, seeds that are 0.2 apart."""


def both(name, *arguments):
    """What the wrong one and the right one say."""
    pair = MISREADINGS[name]
    return pair.wrong(*arguments), pair.right(*arguments)


def test_claims_runs_are_independent():
    """Means 0.1, 1.1, 2.1: sd 1, so 1/√3; as six runs √(4.06/5)/√6 = 0.368."""
    wrong, right = both("claims_runs_are_independent", SPREAD)
    assert right == pytest.approx(1 / math.sqrt(3))
    assert wrong == pytest.approx(math.sqrt(4.06 / 5 / 6))
    made = estimate(dict(enumerate(SPREAD)))
    t = 4.302652729911275  # of two degrees of freedom
    assert (made.high - made.low) / 2 == pytest.approx(t * right)


def test_with_one_run_of_each_start_both_are_alike():
    wrong, right = both("claims_runs_are_independent", [[0.1], [0.5], [0.4]])
    assert wrong == pytest.approx(right)


@pytest.mark.parametrize(
    ("interval", "wrong", "right"),
    [
        ((-0.2, 0.3), "no effect", "undecided"),
        ((-0.02, 0.01), "no effect", "none that matters"),
        ((0.01, 0.02), "an effect", "none that matters"),
        ((0.01, 0.2), "an effect", "an effect"),
    ],
)
def test_claims_not_seen_is_none(interval, wrong, right):
    assert both("claims_not_seen_is_none", *interval, 0.03) == (wrong, right)


def test_the_package_never_says_that_there_is_no_effect():
    claim = CLAIMS[0]
    made = estimate({0: [-0.2], 1: [0.3], 2: [0.0]})
    assert claim.decide(made) == "not seen"
    assert made.detectable > claim.smallest


def test_claims_one_significant():
    """0.25 ± 0.10 and 0.10 ± 0.10: 2.5 and 1 standard errors, 1.06 between them."""
    a, b = (0.25, 0.10), (0.10, 0.10)
    assert both("claims_one_significant", a, b) == (True, False)
    assert both("claims_one_significant", (0.3, 0.1), (0.08, 0.1)) == (True, False)
    assert both("claims_one_significant", (0.6, 0.1), (0.1, 0.1)) == (True, True)
    assert both("claims_one_significant", (0.9, 0.1), (0.3, 0.1)) == (False, True)
