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
from course.plots import (
    cards,
    cispo,
    overview,
    ppo,
    primitives,
    sapo,
    style,
    surrogate,
)
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


def test_a_pattern_and_a_format_are_both_dashes(axis):
    looks = style.arms(["GRPO", "SAPO"])
    primitives.curve_panel(axis, [1, 2], {"GRPO": [1, 1], "SAPO": [2, 2]}, looks)
    one, other = axis.lines
    assert one.get_linestyle() == "-" and other.get_linestyle() == "--"
    assert other.is_dashed() and other.get_color() == style.COLOURS["sapo"]
    primitives.line(axis, [1, 2], [1, 2], "k", "o--")
    assert axis.lines[-1].get_marker() == "o"


def below(figure):
    """The line at the lower right of a figure."""
    return figure.get_supxlabel()


def test_a_figure_of_runs_says_how_many_and_what_the_band_is(axis):
    for label in ("GRPO", "SAPO"):
        primitives.band(axis, [[1.0, 2.0]] * 3, "k", label)
    assert below(axis.figure) == "3 runs; line: median, band: range"


def test_arms_with_different_numbers_of_runs_say_so(axis):
    for label, n in {"GRPO": 10, "SAPO": 10, "GMPO": 5}.items():
        primitives.band(axis, [[1.0, 2.0]] * n, "k", label)
    text = "10 runs (GRPO, SAPO), 5 runs (GMPO); line: median, band: range"
    assert below(axis.figure) == text


def test_with_many_arms_only_the_range_of_their_numbers_is_told(axis):
    rows = {f"a method called {i}": [1.0] * (5 + i) for i in range(6)}
    primitives.dots(axis, rows)
    assert below(axis.figure) == "5 to 10 runs; dots: single runs, bar: median"


def test_one_run_has_no_band_to_speak_of_and_what_is_no_run_has_its_own_name(axis):
    primitives.band(axis, [[1.0, 2.0]], "k")
    assert below(axis.figure) == "1 run"
    other = plt.subplots()[1]
    primitives.strands(other, [[1.0], [2.0]], "k", what="rollout")
    assert below(other.figure).startswith("2 rollouts; thin: single rollouts")
    silent = plt.subplots()[1]
    primitives.band(silent, [[1.0], [2.0]], "k", what="")
    assert below(silent.figure) == ""


def test_bands_and_dots_in_one_figure_are_told_in_one_line():
    figure, (left, right) = plt.subplots(1, 2)
    primitives.band(left, [[1.0, 2.0]] * 3, "k", "GRPO")
    primitives.dots(right, {"GRPO": [1.0, 2.0, 3.0]})
    both = f"3 runs; {primitives.BAND}; {primitives.DOTS}"
    assert below(figure) == both


def test_dots_of_a_method_have_its_colour(axis):
    primitives.dots(axis, {"GRPO": [1.0], "start": [2.0]})
    colours = [line.get_color() for line in axis.lines[::2]]
    assert colours == [style.COLOURS["grpo"], style.FREE[1]]


@pytest.mark.parametrize("labels", [["GRPO"], ["GRPO", "SAPO"]])
def test_a_finding_stands_above_the_legend_and_nothing_overlaps(labels):
    ratios = torch.linspace(0.1, 2, 50)
    named = {a: {s: curve(a.lower(), s, ratios) for s in (1, -1)} for a in labels}
    said = "A finding long enough to need a second line, " * 3
    figure = plots.curves(named, title=said.strip())
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


def test_curves_that_coincide_are_both_seen():
    """The first is wider than what lies on it, which has gaps."""
    ratios = torch.linspace(0.1, 2, 50)
    names = {"GRPO": "grpo", "Dr. GRPO": "dr_grpo"}
    named = {a: {s: curve(n, s, ratios) for s in (1, -1)} for a, n in names.items()}
    for axis in plots.curves(named).axes:
        one, other = axis.lines[:2]
        assert one.get_ydata().tolist() == other.get_ydata().tolist()
        assert one.get_linewidth() > 1.5 * other.get_linewidth()
        assert other.is_dashed() and not one.is_dashed()


def test_the_accuracy_of_a_habit_is_left_out_where_hardly_anyone_has_it():
    rows = [
        {f"habit/{h}": s, f"habit_accuracy/{h}": 1.0}
        for h, s in (("careful", 0.9), ("guess", 0.01), ("ramble", 0.09))
    ]
    one = {key: value for row in rows for key, value in row.items()}
    right = plots.habits(History("grpo", rows=[one, one])).axes[1]
    assert [len(line.get_xdata()) for line in right.lines] == [2, 0, 2]


def texts_of(figure):
    return [" ".join(text.get_text().split()) for text in figure.axes[0].texts]


def test_the_map_says_of_every_method_what_the_registry_says():
    assert set(overview.PLACES) == set(ALGORITHMS)
    figure = overview.family_map()
    shown = texts_of(figure)
    for one in ALGORITHMS.values():
        assert {one.title, one.paper, one.changed} <= set(shown)
    gates = figure.axes[0].child_axes
    assert len(gates) == len(ALGORITHMS) + 1, "every method has one, the key another"


def test_the_chapters_on_the_map_are_those_that_there_are():
    folder = Path(plots.__file__).parents[2]
    for name, (_, _, chapter) in overview.PLACES.items():
        (notebook,) = folder.glob(f"{chapter:02d}_*.ipynb")
        words = {"reinforce": "policy_gradient", "gspo_token": "gspo"}
        assert words.get(name, name) in notebook.stem


@pytest.mark.parametrize("make", [overview.family_map, overview.training_step])
def test_words_on_a_picture_stay_in_it(make):
    figure = make()
    figure.canvas.draw()
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.y0 >= 0, text.get_text()
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1, text.get_text()


def test_words_on_the_map_stay_in_their_box():
    figure = overview.family_map()
    figure.canvas.draw()
    boxes = [patch.get_window_extent() for patch in figure.axes[0].patches[:11]]
    gates = [gate.get_window_extent() for gate in figure.axes[0].child_axes[:11]]
    words = [text for text in figure.axes[0].texts if text.get_text()]
    for text in words[: 4 * len(boxes)]:
        around = text.get_window_extent().padded(3)
        inside = [box for box in boxes if box.overlaps(around)]
        assert len(inside) == 1, text.get_text()
        assert inside[0].x0 < around.x0 and around.x1 < inside[0].x1, text.get_text()
        assert not any(gate.overlaps(around.padded(-2)) for gate in gates)


def test_the_networks_of_ppo_and_grpo_differ_in_the_critic():
    shown = texts_of(overview.networks())
    assert shown.count("$V$: a value per token, ($B$, $T$)") == 1
    assert "none: the group's mean is the baseline" in shown
    assert "DAPO" in texts_of(overview.networks("dapo"))


def test_a_short_bar_is_seen():
    survey = {"careful": 0.99, "guess": 0.01}, {"careful": 1.0, "guess": 0.0}
    (axis,) = overview.habit_bars({"start": survey}).axes
    ends = [line for line in axis.lines if line.get_linewidth() >= 3]
    assert [line.get_xdata()[0] for line in ends] == [0.99, 0.01]


@pytest.mark.parametrize("name", cards.CARDS)
def test_a_card_is_drawn_for_its_size(name):
    figure = cards.CARDS[name]()
    assert tuple(figure.get_size_inches()) == cards.SIZE
    assert figure.get_suptitle()
    figure.canvas.draw()
    for axis in figure.axes:
        words = [*axis.texts, axis.xaxis.label, axis.yaxis.label]
        words += [*axis.get_xticklabels(), *axis.get_yticklabels()]
        for text in words:
            box = text.get_window_extent()
            assert text.get_fontsize() >= 12, text.get_text()
            assert box.x0 >= 0 and box.x1 <= figure.bbox.x1, text.get_text()


def test_all_cards_are_saved_for_the_gallery(tmp_path, monkeypatch):
    monkeypatch.setenv("REFIMPL_FIGURES", str(tmp_path))
    cards.draw_all()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"card_{name}.png" for name in cards.CARDS}


def test_training_shows_a_metric_that_only_some_runs_have():
    rows = [{"reward": 0.1, "kl": None}, {"reward": 0.2, "kl": 0.5}]
    some = History("grpo", rows=rows)
    none = History("ppo", rows=[{"reward": 0.3}, {"reward": 0.4}])
    metrics = (("reward", "reward"), ("kl", "KL"))
    reward, kl = plots.training({"grpo": [some], "ppo": [none]}, metrics).axes
    assert [line.get_label() for line in reward.lines] == ["grpo", "ppo"]
    assert [line.get_xydata().tolist() for line in kl.lines] == [[[2, 0.5]]]


def test_a_clip_that_never_acts_is_seen_above_the_edge():
    never, often = History("grpo"), History("grpo")
    never.rows = [{"reward": 0.5, "clip_ratio/region_mean": 0.0}] * 3
    often.rows = [{"reward": 0.5, "clip_ratio/region_mean": 0.2}] * 3
    runs = {"GRPO": [never], "GRPO, with the bug": [often]}
    reward, clipped = plots.rewards_and_clips(runs, "One of them clips").axes
    assert reward.get_ylim()[0] == 0 > clipped.get_ylim()[0] > -0.02


def test_the_right_edge_of_the_six_cases_is_where_the_curve_ends():
    ratios = torch.linspace(0.01, 2.5, 200)
    figure = ppo.six_cases({s: curve("ppo", s, ratios) for s in (1, -1)})
    assert figure.axes[0].get_xticklabels()[-1].get_text() == "2.5"


def test_a_tokens_own_turns_follow_the_number_of_mini_batches():
    figure = cispo.fork_path([[1.0] * 6], [1], [0.0] * 6, 1.28, minibatches=3)
    turns = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert [x for line in turns for x in line.get_xdata()] == [2, 5]


def test_the_table_widens_where_a_good_tokens_coefficient_goes_beyond_three():
    ratios = torch.linspace(0.021, 5.999, 300)
    names = ("grpo", "dapo", "cispo", "sapo")
    named = {name: {s: curve(name, s, ratios) for s in (1, -1)} for name in names}
    axes = surrogate.one_table(named, {"1": [1.0]}).axes
    assert [axis.get_xlim()[1] for axis in axes[:4]] == [3, 3, 6, 3]


def test_an_interval_goes_up_and_counts_every_start():
    """sd 1, t of 2 degrees of freedom: 4.3027 / √3."""
    low, high = sapo.interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-3)


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
