"""Figures: what is computed on the way to them, and what a label or an axis says."""

import base64
import io
import math
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from PIL import Image

from course.kit import plots
from course.kit.plots import primitives
from course.kit.plots.words import words
from course.kit.runs import of_runs
from course.moe_and_rspo import figures as routers
from course.start_here import figures as overview
from refimpl import ALGORITHMS, curve

NAN = math.nan
NOTEBOOKS = Path(plots.__file__).parents[3]


@pytest.fixture
def axis():
    return plt.subplots()[1]


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


def test_a_bar_stands_at_the_median_of_what_is_known(axis):
    primitives.dots(axis, {"a": [1.0, NAN, 2.0, 6.0], "b": [4.0]})
    bars = [line for line in axis.lines if line.get_marker() == "None"]
    assert [bar.get_xdata()[0] for bar in bars] == [2, 4]


def bands(axis, counts: dict, **more) -> None:
    for label, n in counts.items():
        primitives.band(axis, [[1.0, 2.0]] * n, "k", label, **more)


DRAWN = "; line: median, band: range"
BELOW = [
    (lambda axis: bands(axis, {"GRPO": 3, "SAPO": 3}), f"3 runs{DRAWN}"),
    (
        lambda axis: bands(axis, {"GRPO": 10, "SAPO": 10, "GMPO": 5}),
        f"10 runs (GRPO, SAPO), 5 runs (GMPO){DRAWN}",
    ),
    (lambda axis: bands(axis, {"": 1}), "1 run"),
]


@pytest.mark.parametrize(("draw", "text"), BELOW, ids=[text for _, text in BELOW])
def test_a_figure_of_runs_says_how_many_and_what_is_drawn_of_them(axis, draw, text):
    """One run has neither a median nor a range."""
    draw(axis)
    assert axis.figure.get_supxlabel() == text


@pytest.mark.parametrize("labels", [["GRPO"], ["GRPO", "SAPO"]])
def test_a_finding_stands_above_the_legend_and_nothing_overlaps(labels):
    ratios = torch.linspace(0.1, 2, 50)
    named = {a: {s: curve(a.lower(), s, ratios) for s in (1, -1)} for a in labels}
    text = "A finding long enough to need a second line, " * 3
    figure = plots.curves(named, title=text.strip())
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in figure.texts]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    boxes += [axis.get_tightbbox() for axis in figure.axes]
    assert len(figure.legends) == (len(labels) > 1)
    for i, one in enumerate(boxes):
        for other in boxes[i + 1 :]:
            inner = one.intersection(one, other)
            assert inner is None or inner.height < 3
    assert max(box.x1 for box in boxes) <= figure.bbox.width + 1


def test_the_map_draws_of_every_method_what_it_changes_and_nothing_overlaps():
    """Words of at least 11.5 points are read at half the size, too."""
    figure = overview.family_map()
    axis = figure.axes[0]
    figure.canvas.draw()
    shown = [text.get_text() for text in axis.texts]
    assert overview.PLACES.keys() == overview.CHANGES.keys()
    for name, (_, _, chapter) in overview.PLACES.items():
        assert {ALGORITHMS[name].title, overview.CHANGES[name][0]} <= {*shown}
        (notebook,) = NOTEBOOKS.glob(f"{chapter:02d}_*.ipynb")
        chapters = {"reinforce": "policy_gradient", "gspo_token": "gspo"}
        assert chapters.get(name, name) in notebook.stem
    assert len(axis.child_axes) == len(overview.PLACES) + 1, "pictures, and a key"
    assert all(text.get_fontsize() >= 11.5 for text in axis.texts)
    boxes = [text.get_window_extent() for text in axis.texts]
    boxes += [one.get_window_extent() for one in axis.child_axes]
    for i, one in enumerate(boxes):
        assert not any(one.overlaps(other) for other in boxes[i + 1 :])


def test_a_figures_words_are_title_panels_labels_and_footer():
    figure, (left, right) = plt.subplots(1, 2)
    left.plot([0, 1], label=r"$\tau$ = 1")
    left.legend()
    left.set_title(r"$\hat{A} > 0$")
    right.set_ylabel(r"ratio $\pi_\theta / \pi_{old}$")
    figure.suptitle("The gate closes\non both sides")
    primitives.caption(figure, "5 runs; band: range")
    assert words(figure) == (
        "The gate closes on both sides. Panels: Â > 0, ratio π_θ / π_old. "
        "Shown: τ = 1. 5 runs; band: range"
    )


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
