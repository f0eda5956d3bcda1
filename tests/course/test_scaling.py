"""The figures of chapter 14 show what they are said to show."""

import pytest
import torch
from torch.testing import assert_close

from course.scaling_out import figures as scaling
from refimpl.algorithms import ALGORITHMS, from_gate

RATIO = torch.tensor([0.3, 0.9, 1.0, 1.1, 1.5, 2.9, 3.4]).double()


@pytest.mark.parametrize("sign", [1, -1])
def test_a_coefficient_is_gate_times_ratio_times_advantage(sign):
    wave = from_gate(lambda r, advantages: 1 / (1 + (r - 1) ** 2))
    drawn = scaling.coefficient(wave, RATIO, sign=sign)
    assert_close(drawn, sign * RATIO / (1 + (RATIO - 1) ** 2))


def test_dppo_drops_what_has_moved_by_more_than_the_bound():
    """π_old = 0.1, δ = 0.2: r up to 3 where Â > 0; where Â < 0 nothing can fall."""
    good = scaling.coefficient(ALGORITHMS["dppo_tv"], RATIO, 0.1)
    assert_close(good, torch.where(RATIO <= 3, RATIO, 0.0))
    bad = scaling.coefficient(ALGORITHMS["dppo_tv"], RATIO, 0.1, -1)
    assert_close(bad, -RATIO)
    likely = scaling.coefficient(ALGORITHMS["dppo_tv"], RATIO[:3], 0.8, -1)
    assert_close(likely, -torch.tensor([0.0, 0.9, 1.0]).double())


def test_vespo_is_one_at_one_and_peaks_at_k_over_lambda():
    grid = torch.linspace(0.01, 3, 300).double()
    drawn = scaling.coefficient(ALGORITHMS["vespo"], grid)
    assert grid[drawn.argmax()].item() == pytest.approx(2 / 3, abs=0.02)
    assert scaling.coefficient(ALGORITHMS["vespo"], RATIO)[2].item() == pytest.approx(1)


def test_the_explorer_draws_dppo_at_the_readers_token():
    """π_old = 0.02, δ = 0.04: up to a ratio of 3."""
    play = scaling.newer_explorer()
    play.set(old=0.02, bound=0.04)
    drawn = torch.as_tensor(play.figure.axes[1].lines[1].get_ydata())
    assert 2.95 < drawn.max() <= 3
    play.set(old=0.8)
    drawn = torch.as_tensor(play.figure.axes[1].lines[1].get_ydata())
    assert drawn.isnan().any() and drawn.nan_to_num().max() < 1.06
