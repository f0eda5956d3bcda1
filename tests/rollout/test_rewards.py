"""A reward function is somebody else's code: it is called plainly and not trusted."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from refimpl.rewards import check_rows, columns, overlong_punishment, score
from refimpl.tasks import Arithmetic

PROMPTS, COMPLETIONS = ["1+2=", "3+4="], ["#3", "#8"]


def returning(value):
    def stub(**_):
        return value

    return stub


def call(reward, **columns):
    return score(reward, PROMPTS, COMPLETIONS, columns)


def closeness(completions, answer, prompts, **kwargs):
    """Written as for TRL."""
    assert prompts == PROMPTS
    return [
        1 / (1 + abs(int(c[1:]) - a)) for c, a in zip(completions, answer, strict=True)
    ]


def test_a_function_written_for_trl_works():
    assert call(closeness, answer=[3, 7], terms=[2, 2]) == [1.0, 0.5]


def test_an_object_with_call_works():
    class Constant:
        def __call__(self, prompts, completions, **_):
            return [len(p) for p in prompts]

    assert call(Constant()) == [4.0, 4.0]


def test_the_function_receives_lists_under_the_names_of_trl():
    received = {}
    columns = {"answer": [3, 7], "level": ["easy", "hard"]}

    def spy(**arguments):
        received.update(arguments)
        return [0, 0]

    score(spy, tuple(PROMPTS), tuple(COMPLETIONS), columns)
    assert received == {"prompts": PROMPTS, "completions": COMPLETIONS, **columns}


def test_a_function_cannot_change_the_callers_lists():
    def vandal(prompts, completions, **_):
        prompts.clear()
        completions.reverse()
        return [1, 2]

    prompts, completions = list(PROMPTS), list(COMPLETIONS)
    assert score(vandal, prompts, completions, {}) == [1.0, 2.0]
    assert (prompts, completions) == (PROMPTS, COMPLETIONS)


@pytest.mark.parametrize(
    "numbers",
    [
        (1, 0.5),
        [True, Fraction(1, 2)],
        np.array([1, 0.5]),
        torch.tensor([1, 0.5]),
        [torch.tensor(1.0), np.float32(0.5)],
    ],
)
def test_every_kind_of_number_becomes_a_plain_float(numbers):
    rewards = call(returning(numbers))
    assert rewards == [1.0, 0.5]
    assert {type(r) for r in rewards} == {float}


NOT_FINITE = {
    "None": None,
    "NaN": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "word": "good",
    "list": [1.0],
    "complex": 1j,
    "object": object(),
    "too large for a float": 10**400,
    "two numbers": torch.tensor([0.0, 1.0]),
    "NaN in a tensor": torch.tensor(math.nan),
    "array": np.array([1.0, 2.0]),
}


@pytest.mark.parametrize("value", NOT_FINITE.values(), ids=NOT_FINITE)
def test_a_value_that_is_no_finite_number_is_refused_with_its_completion(value):
    with pytest.raises(ValueError, match=r"stub returned .* for '#8'.*finite number"):
        call(returning([0.0, value]))


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ([], "returned 0"),
        ([1.0], "returned 1"),
        ([1.0] * 3, "returned 3"),
        (np.ones(5), "returned 5"),
        (None, "returned None"),
        (1.0, r"returned 1\.0"),
        (torch.tensor(1.0), r"returned tensor\(1\.\)"),
        (np.array(1.0), r"returned array\(1\.\)"),
        ((r for r in [1.0, 2.0]), "returned <generator"),
    ],
)
def test_anything_but_one_number_per_completion_is_refused(value, got):
    with pytest.raises(ValueError, match=f"stub must return 2 numbers, .*{got}"):
        call(returning(value))


def test_an_error_inside_the_function_is_named_and_kept_as_the_cause():
    def broken(completions, **_):
        return [1 / len(c[2:]) for c in completions]

    with pytest.raises(ValueError, match="broken raised ZeroDivisionError") as caught:
        call(broken)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_function_that_does_not_take_the_columns_is_told_how_it_is_called():
    def narrow(prompts, completions):
        return [0, 0]

    message = r"narrow raised TypeError.*answer=…, terms=….*take \*\*columns"
    with pytest.raises(ValueError, match=message):
        call(narrow, answer=[3, 7], terms=[2, 2])


def test_ctrl_c_inside_the_function_is_not_an_error_of_the_function():
    def interrupted(**_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(interrupted)


# Eq. 13 of DAPO


@pytest.mark.parametrize(
    ("length", "punishment"),
    [(0, 0), (16_384, 0), (16_385, -1 / 4096), (18_432, -0.5), (20_480, -1)],
)
def test_the_punishment_of_the_paper(length, punishment):
    """L_max = 20 480, L_cache = 4 096: the ramp starts at 16 384."""
    found = overlong_punishment(torch.tensor([float(length)]), 20_480, 4_096)
    assert found.item() == pytest.approx(punishment, abs=1e-6)


def test_the_punishment_never_exceeds_one():
    assert overlong_punishment(torch.tensor([99.0]), 48, 8).item() == -1


def test_the_ramp_may_be_as_long_as_the_limit():
    """L_cache = L_max: every token costs."""
    length = torch.tensor([0.0, 12.0, 48.0])
    assert overlong_punishment(length, 48, 48).tolist() == [0.0, -0.25, -1.0]


@pytest.mark.parametrize("buffer", [0, -1, 49])
def test_a_ramp_must_fit_below_the_limit(buffer):
    with pytest.raises(ValueError, match="buffer must lie in"):
        overlong_punishment(torch.tensor([3.0]), 48, buffer)


# A task's rows


def test_the_rows_of_a_task_pass_as_they_are():
    for rows in (
        Arithmetic().sample(8, 0),
        Arithmetic().held_out(3),
        [{"prompt": "1+2="}],
        [{"prompt": "a", "answer": 1}, {"answer": None, "prompt": "b"}],
    ):
        assert check_rows(rows, "sample") is rows
    assert columns(rows) == {"answer": [1, None]}


GOOD = {"prompt": "1+2=", "answer": 3}
BAD_ROWS = {
    "nothing": (None, "it returned None"),
    "no rows": ([], r"it returned \[\]"),
    "a dictionary": (GOOD, r"it returned \{'prompt'"),
    "columns": ({"prompt": ["1+2="]}, "it returned"),
    "a text": ("1+2=", "it returned '1"),
    "a generator": ((row for row in [GOOD]), "it returned <generator"),
    "an array": (np.array([1, 2]), "it returned array"),
    "texts": (["1+2="], "one of them is '1"),
    "pairs": ([("prompt", "1+2=")], r"one of them is \('prompt'"),
    "None among them": ([GOOD, None], "one of them is None"),
    "no prompt": ([{"question": "1+2=", "answer": 3}], "one of them is {'question'"),
    "a prompt of numbers": ([GOOD, {"prompt": [5, 7]}], r"one of them is .*\[5, 7\]"),
    "a prompt that is None": ([{"prompt": None}], "one of them is"),
    "a key that some lack": (
        [GOOD, {"prompt": "3+4="}],
        r"the same keys .*\['answer', 'prompt'\], another \['prompt'\]",
    ),
    "a key too many": ([GOOD, {**GOOD, "level": 1}], "the same keys .*'level'"),
    "keys of two kinds": ([GOOD, {**GOOD, 7: 1}], "the same keys .*7"),
}


@pytest.mark.parametrize(("rows", "said"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_rows_that_are_no_rows_are_refused_with_the_method_that_made_them(rows, said):
    start = r"^task\.held_out must return a list of dictionaries with a 'prompt' string"
    with pytest.raises(ValueError, match=f"{start}.*{said}"):
        check_rows(rows, "held_out")
