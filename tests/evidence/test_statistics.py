"""Intervals over warm starts, by hand."""

import math

import pandas as pd
import pytest

from experiments.gpu import gates
from experiments.gpu.gates import PAIRS, RATES
from experiments.statistics import benjamini_hochberg, estimate, holms
from refimpl import UserError


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


def test_corrections_for_many_tests_by_hand():
    """Sorted .005 .01 .03 .04: Holm takes them 4, 3, 2 and 1 times, never falling;
    Benjamini–Hochberg 4/1, 4/2, 4/3 and 4/4 times, never rising from the last."""
    p = [0.01, 0.04, 0.03, 0.005]
    assert holms(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert benjamini_hochberg(p) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert holms([]) == benjamini_hochberg([]) == []
    assert holms([0.9, 0.8]) == [1.0, 1.0]


def test_a_seed_counts_with_all_of_its_runs():
    names = ["arm", "task", "updates", "rate", "seed"]
    one, two = PAIRS["hard"]
    cells = {
        (arm, "sums", 16, rate, seed): (arm == one) * (0.1 + 0.1 * seed)
        for arm in (one, two)
        for rate in RATES[16]
        for seed in range(3)
    }
    table = pd.Series(cells).rename_axis(names)
    assert gates.compared(table, one, two, "sums", 16).effect == pytest.approx(0.2)
    del cells[two, "sums", 16, RATES[16][0], 2]
    fewer = gates.compared(pd.Series(cells).rename_axis(names), one, two, "sums", 16)
    assert (fewer.starts, fewer.effect) == (2, pytest.approx(0.15))
