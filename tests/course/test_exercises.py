"""Every solution passes, every known mistake is named, nothing passes by accident; and
a page without Python says the same."""

import ast
import math
import random

import numpy as np
import pytest
import torch

from course import kit
from course.kit.answer_sheet import answer_sheet
from course.kit.by_hand import RATIOS, TEXTS, answers, compare
from course.kit.exercise import (
    ABSOLUTE,
    RELATIVE,
    _same,
    exercises,
    judged,
    typed,
    typed_cells,
    verdict,
)

ALL, TYPED = exercises(), typed_cells()
EVERY = ALL | TYPED
each = pytest.mark.parametrize("key", EVERY)


def t(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def right(key):
    return f"✓ {key}  Right."


def named(key, says):
    return f"✗ {key}  {says}"


@each
def test_right_answers_pass_and_each_mistake_gets_its_own_message(key):
    exercise = EVERY[key]
    assert judged(exercise, exercise.solution) == right(key)
    for says, mistake in exercise.wrong():
        assert judged(exercise, mistake) == named(key, says)
    assert len(exercise.mistakes) >= min(3, (len(exercise.choices) or 4) - 1)


KEYS = {  # of the numbers in the task's text
    "0.1": 5 - 1,
    "3.1": (0 - 0.75) / 0.5,
    "3.2": 3 / 6,
    "3.10": round(1.1**10, 1),
    "7.5": 8.0 - 1,
    "8.1": round(math.exp(0.4 / 4), 1),
    "8.2": 0.4 / 1000,
    "9.1": round(100 * (1 - 0.7 ** (1 / 20))),
    "9.4": round(-2 * math.log(0.7), 1),
    "12.2": round(math.sqrt((1 / 5 + 1 / 100) / (2 / 100)), 1),
    "13.2": round((1 - 0.75**8 - 0.25**8) / 2, 2),
    "13.4": 1 - (0.5 + 0.3),
    "13b.1": 7 * (4 + 4 + 8),
    "14.1": (4 * 40) / (4 * 4),
    "14.2": 2 * 16 / 4,
    "14.3": 3 * 512 / 128,
    "16.3": -1 / 0.5,
    "18.2": 0.6 / (0.3 * 0.5),
    "19.2": 1 / 0.05,
    # and values of the functions that are asked for
    "1.3": ((t(0.5, 0.25, 0.25), torch.tensor([0, 2]), t(1, 4)), t(-6, -5, 11) / 8),
    "1b.2": ((t([0.3, 0.2, 9]), t([0.1, 0.3, 0]), t([1, 1, 0])), t(math.exp(0.1))),
    "2.3": ((t([1, 2]), t([0.5, 0.25]), t([1, 1]), t(2), 0.5, 0.5), t([1.3125, 2.75])),
    "2b.4": ((2, t(0, 1), t(1, 0.5), 0.5), t(0.5, 1.75)),
    "2b.5": ((t(3, 3), t(1, 1), t(4, 0), 0.5), t(3.125, 4.5)),
    "5.3": (([0.9, 0.1], [0.4, 0.6], 2), (0.6 + 0.06**0.5) ** 2),
    "6.3": ((1.0, 7, 8, 4), 1 / 4),
    "10.4": ((1.5, 1 / math.cosh(3) ** 2), 4.0),
    "10.5": ((t(1.5, 0.5), 2.0), t(math.pi, -math.pi) / 8),
    "11.1": ((t(2, 10),), t(2, 5 + 5 * math.log(2))),
    "11.3": ((0.1, 0.05), 32),
    "11.5": ((0.75, 0.9996, -1.0), ["ppo", "dapo", "gspo"]),
    "12.5": ((0.1, 0.2, 4, 0.1), 16),
    "13.5": ((5, 1), 2 * (1 + 6) / 64),
    "13b.3": (([(3, 5), (2, 7)], 4), 4 * 8 + 4 * 9),
    "14.4": ((t([0, 0]), t([1.25, 1]).log(), t([2, 1]), t([1, 0])), t([-1.25, 0])),
    "15.2": (([0.75, 0.25], [0.25, 0.75], 2), [2 / 3, 1 / 3]),
    "16.4": ((0.6, 0.5), (1 / 6, 5 / 3)),
}


@pytest.mark.parametrize("key", KEYS)
def test_a_solution_is_what_the_numbers_give(key):
    exercise, given, expected = ALL[key], (), KEYS[key]
    if exercise.cases:
        given, expected = expected
    answer = exercise.solution(*given) if given else exercise.solution
    assert _same(answer, expected)


@each
def test_what_is_neither_right_nor_known(key):
    """A stub is no attempt, nonsense is wrong, an exception is reported and not raised.

    A word may be written in any case; a number in quotation marks is told so.
    """

    def stub(*_): ...

    def broken(*_):
        raise ZeroDivisionError("oh")

    exercise = EVERY[key]
    cases, solution = exercise.cases, exercise.solution
    assert "Not attempted yet" in judged(exercise, stub if cases else ...)
    assert judged(exercise, (lambda *_: "nonsense") if cases else "nonsense")[0] == "✗"
    if cases:
        reply = judged(exercise, broken)
        assert reply.startswith(named(key, "Your code raised ZeroDivisionError: oh ("))
    elif isinstance(solution, str):
        assert judged(exercise, f" {solution.swapcase()} ") == right(key)
    elif isinstance(solution, int | float):
        assert "without quotation marks" in judged(exercise, str(solution))


def loop(logp, advantages, mask):
    """REINFORCE's loss, with an answer's tokens counted from the left."""
    lengths = mask.sum(1).int().tolist()
    each = [(a * row[:n]).mean() for a, row, n in zip(advantages, logp, lengths)]
    return -torch.stack(each).mean()


REPLIES = [
    ("01.reinforce_loss", loop, "as many tokens from the left as the mask has ones"),
    ("0.4", (6, "(a)"), "Right."),
    ("3.6", (4, "a."), "Right."),
    (
        "10.4",
        lambda *x: round(ALL["10.4"].solution(*x), 2),
        "18.18; it should be 18.184",
    ),
    (
        "1b.1",
        ("grow", "shrink"),
        "For “good” choose one of 'grows', 'shrinks', 'stays'",
    ),
    ("1.2", (50, "unchanged"), "For “mean” choose one of 'unchanged', 'larger', "),
]


@pytest.mark.parametrize(("key", "answer", "reply"), REPLIES)
def test_what_people_answer(key, answer, reply):
    assert reply in judged(EVERY[key], answer)


def spoiling(answer):
    """`answer`, which leaves nothing of its arguments."""

    def spoiled(*arguments):
        result = answer(*arguments) if callable(answer) else answer
        if isinstance(result, torch.Tensor):
            result = result.clone()  # keeps its gradient
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                argument.data.zero_()
            elif isinstance(argument, list):
                argument.clear()
        return result

    return spoiled


@pytest.mark.parametrize("key", ["9.3", "5.3", "7.2"])  # a gradient, lists, tensors
def test_an_answer_may_change_its_arguments(key):
    """It is as right or as wrong as before, and the next one meets whole cases."""
    exercise, cases = ALL[key], repr(ALL[key].cases)
    for says, mistake in exercise.wrong():
        assert verdict(key, spoiling(mistake)) == named(key, says)
    assert verdict(key, spoiling(exercise.solution)) == right(key)
    assert repr(exercise.cases) == cases


@pytest.mark.parametrize("kind", [torch.tensor, np.bool_, np.array])
def test_a_truth_value_of_torch_or_numpy_is_one(kind):
    for right in (True, False):
        assert _same(kind(right), right) and not _same(kind(not right), right)
        assert _same([kind(right)], [right]) and not _same(kind(right), float("nan"))
    assert not _same(torch.tensor(1.0), True), "a number is none"
    assert not _same(torch.tensor([True]), True), "nor is a list"
    assert not _same(torch.ones(3), 1.0), "nor are three numbers one"
    assert _same(torch.tensor(True), 1.0), "but it may count"
    wide, high = torch.ones(1, 2), torch.ones(2, 1)
    assert not _same(wide, high), "nor do numbers of another shape agree"


def test_what_an_answer_switches_is_switched_back():
    """Also if it raises; a solution that needs a gradient is right afterwards."""

    def states():
        switches = torch.is_grad_enabled(), torch.get_default_dtype()
        return switches, torch.get_rng_state().sum().item(), random.getstate()

    def meddling(*_):
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(1), random.seed(1)
        raise ZeroDivisionError("oh")

    before = states()
    assert "oh" in verdict("9.3", meddling) and states() == before
    assert verdict("9.3", ALL["9.3"].solution) == right("9.3")


def test_a_typed_cell_hands_back_what_is_right_else_the_solution(capsys):
    exercise, name = TYPED["02.gae"], "gae"

    def says(attempt, back=None) -> str:
        """What is printed; the solution or `back` is handed back."""
        assert typed("02.gae", attempt) is (back or exercise.solution)
        return capsys.readouterr().out

    def own(*case):
        return exercise.solution(*case)

    def stub(*_): ...

    assert says(own, own) == f"✓ {name}  Right. The cells below run your function.\n"
    said, mistake = next(exercise.wrong())
    assert says(mistake).startswith(f"✗ {name}  {said} Until")
    assert "Nothing typed yet" in says(stub)
    # the cells below need a tensor
    assert "return a tensor" in says(lambda *case: own(*case).tolist())


def test_the_answers_are_what_their_names_say():
    one = answers()
    assert [len(text) for text in TEXTS] == one.mask.sum(-1).tolist()
    ratio = (one.logp - one.old_logp).exp()
    for row, length, ratios in zip(ratio.tolist(), map(len, TEXTS), RATIOS):
        assert row[:length] == pytest.approx(ratios)
        assert row[length:] == [1] * (4 - length)


@pytest.mark.parametrize("wrong", ["value", "gradient"])
def test_a_typed_loss_that_differs_is_refused(wrong):
    logp = answers().logp
    right = logp.sum()
    mine = right + 1e-4 if wrong == "value" else 2 * right - right.item()
    with pytest.raises(AssertionError, match="the two differ by"):
        compare(mine, right, logp)
    compare(logp.sum(), right, logp)


@each
def test_a_solution_is_shown(key, monkeypatch):
    """As code that can be read alone, or as the answer with its reason."""
    shown = []
    monkeypatch.setattr(kit.exercise, "display", shown.append)
    kit.solution(key)
    text, answer = shown[0].data, EVERY[key].solution
    if callable(answer):
        ast.parse(text.removeprefix("```python\n").removesuffix("```"))
    else:
        assert text.startswith("The answer is `") and text.endswith(EVERY[key].why)


def test_what_is_no_exercise_is_said():
    """A number without its last 0 would be another exercise's."""
    assert "in quotation marks" in verdict(3.10, 1)
    assert "no exercise 'nonsense'" in verdict("nonsense", 1)
    assert "rubric" in verdict("10.7", 1) and "10.1, 10.2" in verdict("10.7", 1)


WITHOUT_CODE = {key: one for key, one in ALL.items() if not one.cases}
NUMBERS = [key for key, one in WITHOUT_CODE.items() if not (one.choices or one.parts)]
"""Exercises whose answer is a number, typed into a field."""
CHOSEN = [key for key in WITHOUT_CODE if key not in NUMBERS]


def checked(key, answer) -> str:
    mark, _, says = verdict(key, answer).split(" ", 2)
    return f"{mark} {says.strip()}"


def looked_up(sheet: dict, number: float) -> str:
    for low, high, says in sheet["replies"]:
        if low <= number <= high:
            return says
    return sheet["otherwise"].replace("{}", str(number))


@pytest.mark.parametrize("key", CHOSEN)
def test_every_choice_is_offered_and_has_the_checkers_reply(key):
    exercise = WITHOUT_CODE[key]
    sheet = answer_sheet(exercise)
    known = [exercise.solution, *exercise.mistakes.values()]
    for answer in known if exercise.parts else [[one] for one in known]:
        if all(a in one for a, one in zip(map(str, answer), sheet["choices"])):
            said = sheet["replies"][", ".join(map(str, answer))]
            assert said == checked(key, answer if exercise.parts else answer[0])
    assert len(sheet["replies"]) == math.prod(map(len, sheet["choices"]))


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_is_judged_alike_on_a_grid_and_beside_each_threshold(key):
    exercise = WITHOUT_CODE[key]
    numbers = [exercise.solution, *exercise.mistakes.values()]
    sheet = answer_sheet(exercise)
    grid = [n / 10 + 0.01 for n in range(-25, 26, 5)]
    for x in numbers:
        reaches = [ABSOLUTE + RELATIVE * abs(x)]
        if exercise.decimals is not None:
            reaches.append(0.5 / 10**exercise.decimals)
        parts = (-1.01, -0.99, 0, 0.99, 1.01)
        grid += [x + part * reach for reach in reaches for part in parts]
    for x in grid:
        said, wanted = looked_up(sheet, x), checked(key, x)
        if "Your answer: " in wanted:  # the page shows the number as it was typed
            said, wanted = (one.split("Your answer: ")[0] for one in (said, wanted))
        assert said == wanted, x
