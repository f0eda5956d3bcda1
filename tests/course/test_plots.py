"""Figures: what is computed on the way to them, and what a label or an axis says."""

import base64
import io
import math

import matplotlib.pyplot as plt
import pytest
import torch
from PIL import Image

from course.kit import plots
from course.kit.plots import primitives
from course.kit.runs import of_runs
from course.moe_and_rspo import figures as routers

NAN = math.nan


def test_a_nan_is_left_out_of_median_and_range():
    """Where no run has a value they are NaN; a run that ended early counts before."""
    runs = [[1.0, NAN, 5.0], [3.0, 4.0, NAN], [9.0, 2.0, NAN]]
    assert primitives.summary(runs) == ([3, 3, 5], [1, 2, 5], [9, 4, 5])
    assert primitives.summary([[1.0, 5.0], [3.0]]) == ([2, 5], [1, 5], [3, 5])
    nothing = primitives.summary([[NAN], [NAN]])
    assert all(math.isnan(column[0]) for column in nothing)


def test_several_runs_are_told_as_median_lowest_highest_and_number():
    assert of_runs([0.94, NAN, 0.1, 0.964]) == "0.94 (0.10 to 0.96, n = 3)"
    assert of_runs(iter([1.0, 2.0]), 1) == "1.5 (1.0 to 2.0, n = 2)"
    with pytest.raises(ValueError, match="at least one number"):
        of_runs([NAN])


BELOW = [
    ({"GRPO": 3, "SAPO": 3}, "3 runs; line: median, band: range"),
    (
        {"GRPO": 10, "SAPO": 10, "GMPO": 5},
        "10 runs (GRPO, SAPO), 5 runs (GMPO); line: median, band: range",
    ),
    ({"": 1}, "1 run"),
]


@pytest.mark.parametrize(("counts", "text"), BELOW, ids=[text for _, text in BELOW])
def test_a_figure_of_runs_says_how_many_and_what_is_drawn_of_them(counts, text):
    """One run has neither a median nor a range."""
    axis = plt.subplots()[1]
    for label, n in counts.items():
        primitives.band(axis, [[1.0, 2.0]] * n, "k", label)
    assert axis.figure.get_supxlabel() == text


def test_what_is_shown_has_words_and_is_twice_as_fine(monkeypatch):
    shown = []
    monkeypatch.setattr(plots, "display", shown.append)
    figure = plt.figure(figsize=(4, 3), dpi=100)
    figure.suptitle("One")
    plots.show(figure)
    data, metadata = shown[0]._repr_png_()
    assert metadata == {"width": 400, "alt": "One"}
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (800, 600)
    assert not plt.fignum_exists(figure.number), "the notebook would show it again"


@pytest.mark.parametrize("gamma", [1.0, 0.7, 0.2])
def test_a_drifted_token_is_clipped_where_gamma_times_its_ratio_is(gamma):
    """Also at a small γ, which lifts log π_old by much."""
    shifted = gamma * routers.RATIOS
    live = {1: shifted < math.exp(0.4), -1: shifted > math.exp(-0.4)}
    for sign, free in live.items():
        c = routers.coefficients(gamma, sign)
        torch.testing.assert_close(c, torch.where(free, shifted, 0.0))
