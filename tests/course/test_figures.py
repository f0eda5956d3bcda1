"""Every panel shows what it is given, under its own label and in its order."""

import inspect
import math

import pytest

from course.cispo import figures as cispo
from course.dapo import figures as dapo
from course.distillation import figures as distillation
from course.dr_grpo import figures as dr_grpo
from course.grpo import figures as grpo
from course.gspo import figures as gspo
from course.kit import claims, habits, stakes
from course.kit.plots import primitives as draw
from course.kit.plots import shared
from course.kit.plots.words import words
from course.kit.runs import of_runs
from course.late_sampler import figures as late
from course.real_model import figures as real
from course.sapo import figures as sapo
from course.scaling_out import figures as scaling
from course.stale_data import figures as stale
from course.start_here import figures as start
from refimpl import History


def history(**columns) -> History:
    return History("grpo", [dict(zip(columns, row)) for row in zip(*columns.values())])


def drawn(figure) -> list[dict]:
    """Of each panel what its lines and bars show, by label."""
    panels = []
    for axis in figure.axes:
        lines = [(x.get_label(), [*map(float, x.get_ydata())]) for x in axis.lines]
        bars = [(x.get_label(), [*map(float, x.datavalues)]) for x in axis.containers]
        panels.append({name: x for name, x in lines + bars if name[0] != "_"})
    return panels


ONE = history(reward=[1, 2], loss=[5, 6], cut_off=[0, 0.5], accuracy=[0.25, 0.75])
TWO = history(reward=[3, 8], loss=[7, 9], cut_off=[0.25, 1], accuracy=[0.5, 1])
SHARES = {"habit/careful": [0.5, 0.625], "habit/guess": [0.25, 0.125]}
HACKED = history(reward=[1, 2], accuracy=[3, 4], **SHARES, **{"habit/ramble": [0, 1]})
FIRST, SECOND = {"GRPO": [1, 2], "DAPO": [6, 7]}, {"GRPO": [3, 5], "DAPO": [8, 9]}
BOTH = {name: (FIRST[name], SECOND[name]) for name in FIRST}
LENGTHS = {"right": [1, 2], "wrong": [5, 6]}
TERMS = {"teacher": [0.75, 0.5], "student": [0.25, 0.125]}
BY_TERMS = {name: dict(zip((2, 3), x)) for name, x in TERMS.items()}
SHORT = {"a": [0.9, 0.2], "b": [0.8, 0.1]}
LAGS = {"none": {0: [1, 2, 9], 4: [3]}, "capped": {0: [5], 4: [6, 7, 6]}}
FIGURES = [  # function, arguments, what the panels show, by a part of the label
    (
        *(dr_grpo.walk, {"a": LENGTHS}, 9),
        [{"right responses": [1, 2], "wrong responses": [5, 6]}],
    ),
    (cispo.loss_value, [1, 2], FIRST, SECOND, [FIRST, SECOND]),
    (gspo.importance_weights, [1, 10], BOTH, [FIRST]),
    (
        *(gspo.by_length, [3], [0.1], [(3, 0.5, 0.25), (9, 0.3, 0.2)]),
        [{"measured": [0.25, 0.2], "predicted": [0.5, 0.3], "paper": [4e-4] * 2}],
    ),
    (stale.stale_estimators, [1, 2], FIRST, [1, 2], SHORT, [FIRST, SHORT]),
    (
        *(real.broken, ONE, TWO),
        [{"right": ONE[x], "with the bug": TWO[x]} for x in ("loss", "reward")],
    ),
    (
        *(start.hacking, [HACKED], 0.5),
        [
            {"reward paid": [1, 2], "accuracy": [0.5, 3, 4]},
            {name[6:]: HACKED[name] for name in HACKED.columns[2:]},
        ],
    ),
    (
        *(sapo.left, {"a": {"moving on": 0.25, "coming back": 0.5}}, ""),
        [{"moving on": [0.25], "coming back": [0.5]}],
    ),
    (distillation.blind, BY_TERMS, {2: 0.1}, [TERMS]),
    (late.clip_sees, [(0.25, 0.5, 0), (0, 1, 0)], [{"old": [25, 0], "mu": [50, 100]}]),
    (scaling.delays, {"GRPO": LAGS}, [{"none": [2, 3], "capped": [5, 6]}]),
    (scaling.distinct, {"a": [8, 8, 2], "b": [1]}, [{"a": [0, 1, 0, 0, 0, 0, 0, 2]}]),
    (
        *(scaling.ranks, [[1, 3, 2, 2], [9, 7, 1, 7]]),
        [
            {"rank 0": [1 / 16] * 4, "rank 1": [1 / 48] * 4},
            {"rank 0": [1 / 32] * 4, "rank 1": [1 / 32] * 4},
        ],
    ),
    (
        *(grpo.dead_groups, {"a": {2: (0.25, 0.5), 3: (0.1, 0.2)}}, ""),
        [{"all wrong": [0.25, 0.1], "all right": [0.5, 0.2]}],
    ),
    (
        *(shared.training, {"GRPO": [ONE], "DAPO": [TWO]}),
        *([("loss", "a"), ("reward", "b")],),
        [{"GRPO": [5, 6], "DAPO": [7, 9]}, {"GRPO": [1, 2], "DAPO": [3, 8]}],
    ),
]


@pytest.mark.parametrize("call", FIGURES, ids=lambda call: call[0].__name__)
def test_a_line_or_bar_has_the_values_of_its_label(call):
    figure, *given, expected = call
    given += ["title"] * ("title" in inspect.signature(figure).parameters)
    for panel, wanted in zip(drawn(figure(*given)), expected):
        for name, values in wanted.items():
            (found,) = (x for label, x in panel.items() if name in label)
            assert found == pytest.approx(values), name


def test_what_is_said_of_runs_and_figures():
    assert of_runs([0.75, math.nan, 0.25, 0.5]) == "0.50 (0.25 to 0.75, n = 3)"
    said = "50 % right at the end (25 % to 100 % in 3 runs)"
    assert stakes.right([0.5, 0.25, 1]) == said
    ended = stakes.ended({"it": "GRPO"}, rate=4e-4, updates=16)
    begins = "Nearest stored runs (30 rollouts × 16 updates, learning rate 4e-4). It: "
    assert ended.startswith(begins) and ended.endswith(" runs).")
    asked = stakes.Prediction("Does it?", ("yes", "no"), "no", "It is 0.")
    replies = [asked.verdict(one) for one in asked.options]
    assert replies == ["No: no. It is 0.", "As you predicted: no. It is 0."]
    amounts = ("", "log2 of rate"), ("-1", "log2 of rate"), ("-0.126", "reward")
    assert [claims.amount(*one) for one in amounts] == ["–", "×0.5", "−0.13"]
    made = claims.difference([1, 3], [0.5, 1.5])  # ± t(0.975, 1) / 2
    assert claims.shown(made) == "+1.00 (-5.35 to +7.35)"
    assert draw.how_many({"a": 3, "b": 1, "c": 3}) == "3 runs (a, c), 1 run (b)"
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
    shares = {"habit/careful": [9, 0.5], "habit_accuracy/careful": [0, 0.75]}
    shares |= {"habit/guess": [0, 0.25], "habit_accuracy/guess": [9, 0.25]}
    shares |= {"habit/ramble": [0, 0.25], "habit_accuracy/ramble": [9, 1]}
    wrong = dr_grpo.wrong_habits([history(**shares)], [1])
    assert wrong == pytest.approx({"careful": 0.4, "guess": 0.6, "ramble": 0})
