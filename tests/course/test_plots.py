"""Figures: what is computed on the way to them, and what a label or an axis says."""

import math
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

from course import plots
from course.plots import cispo, overview, ppo, primitives, style, surrogate
from refimpl.algorithms import ALGORITHMS
from refimpl.curves import curve
from refimpl.history import History

NAN = math.nan


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


@pytest.fixture
def axis():
    return plt.subplots()[1]


def test_a_nan_is_left_out_of_median_and_range():
    runs = [[1.0, NAN, 5.0], [3.0, 4.0, NAN], [9.0, 2.0, NAN]]
    assert primitives.summary(runs) == ([3, 3, 5], [1, 2, 5], [9, 4, 5])


def test_where_no_run_has_a_value_the_summary_is_nan():
    middle, low, high = primitives.summary([[1.0, NAN], [3.0, NAN]])
    assert (middle[0], low[0], high[0]) == (2, 1, 3)
    assert all(math.isnan(column[1]) for column in (middle, low, high))


def test_a_run_that_ended_early_counts_while_it_lasts():
    assert primitives.summary([[1.0, 5.0], [3.0]])[0] == [2, 5]


def test_a_band_passes_over_steps_without_a_value(axis):
    primitives.band(axis, [[1.0, NAN, 5.0], [3.0, NAN, 7.0]], "k", "a")
    (line,) = axis.lines
    assert line.get_xydata().tolist() == [[1, 2], [3, 6]]
    primitives.band(axis, [[NAN, NAN]], "k", "nothing to draw")


def test_a_bar_stands_at_the_median_of_what_is_known(axis):
    primitives.dots(axis, {"a": [1.0, NAN, 2.0, 6.0], "b": [4.0]})
    bars = [line for line in axis.lines if line.get_marker() == "None"]
    assert [bar.get_xdata()[0] for bar in bars] == [2, 4]
    assert [t.get_text() for t in axis.get_yticklabels()] == ["a", "b"]


def test_end_bins_hold_what_is_beyond_them(axis):
    primitives.hist(axis, [-9, 0.1, 0.2, 9, 9], [0, 1, 2], "k")
    primitives.hist(axis, [-9, 0.1, 0.2, 9, 9], [0, 1, 2], "k", 5)
    assert [p.get_height() for p in axis.patches] == pytest.approx([3, 2, 0.6, 0.4])


def test_no_curve_is_dropped_when_styles_run_out(axis):
    lines = {name: [0, 1] for name in "abcde"}
    primitives.curve_panel(axis, None, lines, [("k", "-"), ("r", "--")])
    assert [line.get_label() for line in axis.lines] == list("abcde")


@pytest.mark.parametrize(
    ("label", "method"),
    [
        ("Dr. GRPO", "dr_grpo"),
        ("dr_grpo", "dr_grpo"),
        ("GRPO, ε = 0.2", "grpo"),
        ("GSPO-token, fork", "gspo_token"),
        ("gspo_token", "gspo_token"),
        ("GSPO, 3e-4 / 4e-4", "gspo"),
        ("ppo, dual clip c = 3", "ppo"),
    ],
)
def test_a_label_has_the_colour_of_the_method_it_begins_with(label, method):
    assert style.colour(label) == style.COLOURS[method]


def test_a_label_of_no_method_has_the_default():
    assert style.colour("grpoish") is None
    assert style.colour("warm start", default=style.GREY) == style.GREY


def test_the_longest_beginning_counts_and_a_chapters_own_come_first():
    own = {"SAPO": "black", "SAPO 8.8": "red"}
    assert style.colour("SAPO 8.8, neg ½", own) == "red"
    assert style.colour("SAPO 3", own) == "black"
    assert style.colour("GRPO", own) == style.COLOURS["grpo"]


def test_no_two_arms_look_alike():
    labels = ["GSPO, ε × 100", "GRPO", "a", "GSPO", "b", "c", "unclipped"]
    arms = style.arms(labels)
    assert len(set(arms)) == len(labels)
    assert arms[0] == (style.COLOURS["gspo"], "--"), "the plain name is the solid line"
    assert arms[3] == (style.COLOURS["gspo"], "-")


def test_every_method_has_a_colour_and_a_place_on_the_map():
    assert set(style.COLOURS) == set(overview.PLACES) == set(ALGORITHMS)
    shown = [text.get_text() for text in overview.family_map().axes[0].texts]
    for one in ALGORITHMS.values():
        assert {one.title, one.paper} <= set(shown)
        assert one.changed in [" ".join(text.split()) for text in shown]


def test_training_shows_a_metric_that_only_some_runs_have():
    rows = [{"reward": 0.1, "kl": None}, {"reward": 0.2, "kl": 0.5}]
    some = History("grpo", rows=rows)
    none = History("ppo", rows=[{"reward": 0.3}, {"reward": 0.4}])
    metrics = (("reward", "reward"), ("kl", "KL"))
    reward, kl = plots.training({"grpo": [some], "ppo": [none]}, metrics).axes
    assert [line.get_label() for line in reward.lines] == ["grpo", "ppo"]
    assert [line.get_xydata().tolist() for line in kl.lines] == [[[2, 0.5]]]


def test_the_right_edge_of_the_six_cases_is_where_the_curve_ends():
    ratios = torch.linspace(0.01, 2.5, 200)
    figure = ppo.six_cases({s: curve("ppo", s, ratios) for s in (1, -1)})
    assert figure.axes[0].get_xticklabels()[-1].get_text() == "2.5"


def test_a_tokens_own_turns_follow_the_number_of_mini_batches():
    figure = cispo.fork_path([[1.0] * 6], [1], [0.0] * 6, 1.28, minibatches=3)
    turns = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert [x for line in turns for x in line.get_xdata()] == [2, 5]


def test_the_table_widens_where_a_good_tokens_weight_goes_beyond_three():
    ratios = torch.linspace(0.021, 5.999, 300)
    names = ("grpo", "dapo", "cispo", "sapo")
    named = {name: {s: curve(name, s, ratios) for s in (1, -1)} for name in names}
    axes = surrogate.one_table(named, {"1": [1.0]}).axes
    assert [axis.get_xlim()[1] for axis in axes[:4]] == [3, 3, 6, 3]


def test_figures_go_to_the_top_level_of_the_clone(monkeypatch):
    monkeypatch.delenv("REFIMPL_FIGURES", raising=False)
    assert plots.folder() == Path(__file__).resolve().parents[2] / "figures"


def test_importing_the_course_sets_its_style_and_one_thread():
    script = (
        "import matplotlib, torch, course;"
        "print(matplotlib.rcParams['figure.dpi'], torch.get_num_threads())"
    )
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    where = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**env, "PYTHONPATH": os.pathsep.join([str(where), f"{where}/notebooks"])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["110.0", "1"]
