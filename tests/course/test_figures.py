"""Every panel shows what it is given, under its own label; and what is said of runs."""

import math
from importlib import import_module

import pytest

from course.dapo import figures as dapo
from course.distillation import figures as distillation
from course.dr_grpo import figures as dr_grpo
from course.kit import claims, habits, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.words import words
from course.kit.runs import of_runs
from refimpl import History


def history(**columns) -> History:
    return History("grpo", [dict(zip(columns, row)) for row in zip(*columns.values())])


FIRST, SECOND = {"GRPO": [1, 2], "DAPO": [6, 7]}, {"GRPO": [3, 5], "DAPO": [0.9, 0.2]}
LENGTHS = {"right": [1, 2], "wrong": [5, 6]}
LAGS = {"none": {0: [1, 2, 9], 4: [3]}, "capped": {0: [5], 4: [6, 7, 6]}}
DEAD, SEEN = {"a": {2: (0.25, 0.5), 3: (0.1, 0.2)}}, [(0.25, 0.5, 0), (0, 1, 0)]
FIGURES = {  # arguments, and what the panels show, by a part of the label
    "dr_grpo.walk": ({"a": LENGTHS}, 9, "t", [LENGTHS]),
    "cispo.loss_value": ([1, 2], FIRST, SECOND, [FIRST, SECOND]),
    "late_sampler.clip_sees": (SEEN, "t", [{"old": [25, 0], "mu": [50, 100]}]),
    "scaling_out.delays": ({"GRPO": LAGS}, "t", [{"none": [2, 3], "capped": [5, 6]}]),
    "grpo.dead_groups": (DEAD, "t", "", [{"wrong": [0.25, 0.1], "right": [0.5, 0.2]}]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_line_or_bar_has_the_values_of_its_label(name):
    room, function = name.split(".")
    figure = getattr(import_module(f"course.{room}.figures"), function)
    *given, expected = FIGURES[name]
    for axis, wanted in zip(figure(*given).axes, expected):
        lines = [(x.get_label(), x.get_ydata()) for x in axis.lines]
        shown = lines + [(x.get_label(), x.datavalues) for x in axis.containers]
        for part, values in wanted.items():
            (found,) = (x for label, x in shown if part in label)
            assert [*found] == pytest.approx(values), part


def test_what_is_said_of_runs_and_figures():
    assert of_runs([0.75, math.nan, 0.25, 0.5]) == "0.50 (0.25 to 0.75, n = 3)"
    said = "50 % right at the end (25 % to 100 % in 3 runs)"
    assert stakes.right([0.5, 0.25, 1]) == said
    ended = stakes.ended({"it": "GRPO"}, rate=4e-4, updates=16)
    begins = "Nearest stored runs (30 rollouts × 16 updates, learning rate 4e-4). It: "
    assert ended.startswith(begins) and ended.endswith(" runs).")
    asked = stakes.Prediction("Does it?", ("yes", "no"), "no", "It is 0.")
    assert asked.verdict("no") == "As you predicted: no. It is 0."
    amounts = ("", "log2 of rate"), ("-1", "log2 of rate"), ("-0.126", "reward")
    assert [claims.amount(*one) for one in amounts] == ["–", "×0.5", "−0.13"]
    made = claims.difference([1, 3], [0.5, 1.5])  # ± t(0.975, 1) / 2
    assert claims.shown(made) == "+1.00 (-5.35 to +7.35)"
    assert draw.how_many({"a": 3, "b": 1, "c": 3}) == "3 runs (a, c), 1 run (b)"
    assert draw.how_many({"a": 1, "b": 1}) == "one run each"
    assert draw.how_many({"a": 1}) == "1 run"
    walk = dr_grpo.walk({"x": LENGTHS, "y": LENGTHS}, 9, r"$\hat{A}$ and $\pi_{old}$")
    said = "Â and π_old. Panels: x, y. Shown: right responses, wrong responses"
    assert words(walk) == said


def test_shares_by_hand():
    assert stakes.nearest(2.2, (1, 4)) == 4, "the nearest logarithm"
    run = {"tokens": [500, 1000, 500], "accuracy": [0.1, None, 0.3]}
    assert distillation.known(run) == ((0.5, 2.0), pytest.approx((0.1, 0.3)))
    texts, right = ["#3", "1+2=3;#3", "#4"], [True, True, False]
    found = habits.sorted_by_habit([*"abc"], texts, right)
    assert (found.shares["guess"], found.accuracies["guess"]) == (2 / 3, 1 / 2)
    assert (found.shares["careful"], found.right) == (1 / 3, 2 / 3)
    low, high = dapo.EQUAL
    near = {"reward": [low, high, (low + high) / 2], "entropy": [5, 7, 2]}
    assert dapo.at_equal_reward([history(**near)]) == 2
    shares, right = {"careful": 0.75, "guess": 0.25, "ramble": 0}, (0.75, 0.25, 1)
    given = {f"habit/{x}": [1, shares[x]] for x in shares}
    given |= {f"habit_accuracy/{x}": [0, y] for x, y in zip(shares, right)}
    wrong = dr_grpo.wrong_habits([history(**given)], [1])
    assert wrong == {"careful": 0.5, "guess": 0.5, "ramble": 0}
