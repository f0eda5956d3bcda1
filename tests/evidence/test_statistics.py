"""Intervals over warm starts: by hand, against scipy, and how often they are right."""

import math

import numpy as np
import pytest
from scipy import stats

from refimpl import UserError
from refimpl.lab.statistics import estimate


def test_an_estimate_by_hand():
    """Means 1, 2, 3: d̄ = 2, s = 1, error 1/√3, t(0.975, 2) = 4.302653."""
    made = estimate({0: [0.5, 1.5], 1: [2.0], 2: [1.0, 3.0, 5.0]})
    half = 4.302653 / math.sqrt(3)
    assert made.effect == pytest.approx(2)
    assert (made.low, made.high) == pytest.approx((2 - half, 2 + half))
    assert (made.starts, made.runs) == (3, 6)
    assert made.p == pytest.approx(0.0741799)  # 2 · P(T₂ > 2√3)
    # that is told from 0 four times in five
    assert made.detectable == pytest.approx((4.302653 + 1.060660) / math.sqrt(3))


def test_seeds_of_one_start_are_not_independent_observations():
    """Twenty runs from one start are one start, and leave no interval."""
    made = estimate({0: [0.1 * n for n in range(20)]})
    assert (made.starts, made.runs) == (1, 20)
    assert not made.known and math.isnan(made.p)
    # Nor does repeating every run make the interval narrower.
    rows = {0: [0.0, 0.2], 1: [0.3], 2: [0.1, 0.5, 0.9]}
    again = {start: values * 10 for start, values in rows.items()}
    assert estimate(again)[:3] == pytest.approx(estimate(rows)[:3])


def test_starts_that_agree_to_the_digit_leave_no_doubt_and_none_no_effect():
    assert estimate({0: [1.0], 1: [1.0]})[:3] == (1.0, 1.0, 1.0)
    assert estimate({0: [0.0], 1: [0.0]}).p == 1 and estimate({0: [1], 1: [1]}).p == 0
    for nothing in ({}, {0: []}):
        with pytest.raises(UserError, match="at least one difference"):
            estimate(nothing)


def test_the_interval_covers_what_it_says_and_that_of_single_runs_does_not():
    """Starts spread by 0.1, and seeds within each: 5 starts × 4 seeds, 2,000 times."""
    draw, truth, n = np.random.default_rng(0), 0.2, 2000
    starts = truth + 0.1 * draw.standard_normal((n, 5, 1))
    runs = starts + 0.1 * draw.standard_normal((n, 5, 4))
    made = [estimate(dict(enumerate(tried.tolist()))) for tried in runs]
    covered = sum(x.low <= truth <= x.high for x in made)
    error = runs.std((1, 2), ddof=1) / math.sqrt(20)
    pooled = np.abs(runs.mean((1, 2)) - truth) <= stats.t(19).ppf(0.975) * error
    assert abs(covered / n - 0.95) < 0.015 and pooled.mean() < 0.88
