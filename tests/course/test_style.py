"""Every method has a look of its own, and what is computed on the way to a figure."""

import math
from dataclasses import replace

import pytest
import torch

from course.kit.plots import primitives, style
from course.moe_and_rspo import figures as routers
from refimpl import ALGORITHMS


@pytest.fixture
def unknown(monkeypatch):
    """More methods in the registry than there are free looks; nobody knows them."""
    names = [f"nobody_{n}" for n in range(len(style.NEXT) + 1)]
    for name in names:
        title = name.replace("_", "-").title()
        method = replace(ALGORITHMS["cispo"], name=name, title=title, parent="cispo")
        monkeypatch.setitem(ALGORITHMS, name, method)
    return names


def test_every_method_of_the_registry_has_a_look_and_no_two_the_same(unknown):
    looks = [style.look(name) for name in ALGORITHMS]
    assert len({colour for colour, _ in looks}) == len(ALGORITHMS)
    first = next(name for name in ALGORITHMS if name not in style.LOOKS)
    assert style.look(first) == style.NEXT[0], "the next free one"
    assert style.method("Nobody-3, K = 16") == unknown[3]
    assert style.looks_of(["GRPO", "Nobody-3"])[1] == style.look(unknown[3])


# What is computed on the way to a figure


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
