"""Figures: what is computed on the way to them, and what a label or an axis says."""

import math

import pytest
import torch

from course.kit.plots import primitives
from course.moe_and_rspo import figures as routers

NAN = math.nan


def test_a_nan_is_left_out_of_median_and_range():
    """Where no run has a value they are NaN; a run that ended early counts before."""
    runs = [[1.0, NAN, 5.0], [3.0, 4.0, NAN], [9.0, 2.0, NAN]]
    assert primitives.summary(runs) == ([3, 3, 5], [1, 2, 5], [9, 4, 5])
    assert primitives.summary([[1.0, 5.0], [3.0]]) == ([2, 5], [1, 5], [3, 5])
    nothing = primitives.summary([[NAN], [NAN]])
    assert all(math.isnan(column[0]) for column in nothing)


@pytest.mark.parametrize("gamma", [1.0, 0.7, 0.2])
def test_a_drifted_token_is_clipped_where_gamma_times_its_ratio_is(gamma):
    """Also at a small γ, which lifts log π_old by much."""
    shifted = gamma * routers.RATIOS
    live = {1: shifted < math.exp(0.4), -1: shifted > math.exp(-0.4)}
    for sign, free in live.items():
        c = routers.coefficients(gamma, sign)
        torch.testing.assert_close(c, torch.where(free, shifted, 0.0))
