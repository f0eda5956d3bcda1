"""A reward function is somebody else's code: it is called plainly and not trusted."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from refimpl.rewards import (
    Sum,
    check_rows,
    columns,
    identity,
    overlong_punishment,
    score,
    scored,
)
from refimpl.tasks import Arithmetic
from tests.worlds import small_run

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


# Several rewards as one


def shortness(completions, **_):
    return [1 / len(c) if c else 1.0 for c in completions]


def longness(completions, **_):
    return [float(len(c)) for c in completions]


def test_a_sum_by_hand():
    both = Sum({"near": closeness, "size": longness}, weights=(2, -0.25))
    assert call(both, answer=[3, 7]) == [2 * 1 - 0.5, 2 * 0.5 - 0.5]
    plain = Sum({"near": closeness, "size": longness})
    assert call(plain, answer=[3, 7]) == [3.0, 2.5]
    totals, parts = scored(both, PROMPTS, COMPLETIONS, {"answer": [3, 7]})
    assert totals == [1.5, 0.5]
    assert parts == {"near": [1.0, 0.5], "size": [2.0, 2.0]}


def test_weights_follow_the_order_in_which_the_components_were_given():
    """Not that of their names."""
    both = Sum({"size": longness, "near": closeness}, weights=(-0.25, 2))
    assert call(both, answer=[3, 7]) == [2 * 1 - 0.5, 2 * 0.5 - 0.5]


def test_a_sum_is_unmoved_when_its_dictionary_changes():
    parts = {"near": closeness}
    one = Sum(parts)
    parts["near"] = longness
    assert call(one, answer=[3, 7]) == [1.0, 0.5]


def test_a_component_is_called_once():
    calls = []

    def counted(completions, **_):
        calls.append(len(completions))
        return [0.0] * len(completions)

    scored(Sum({"a": counted, "b": longness}), PROMPTS, COMPLETIONS, {})
    assert calls == [2]


@pytest.mark.parametrize(
    "weights", [np.array([1, 0.5]), torch.tensor([1, 0.5]), [1, 0.5]]
)
def test_weights_of_any_kind_become_plain_numbers(weights):
    assert Sum({"a": longness, "b": closeness}, weights).weights == (1.0, 0.5)


BROKEN = {
    "raises": (lambda **_: 1 / 0, "raised ZeroDivisionError"),
    "one value": (returning([1.0]), "must return 2 numbers"),
    "NaN": (returning([0.0, math.nan]), "returned nan for '#8'"),
}


@pytest.mark.parametrize(("part", "said"), BROKEN.values(), ids=BROKEN)
def test_a_component_at_fault_is_named(part, said):
    both = Sum({"near": longness, "format": part})
    with pytest.raises(ValueError, match=rf"\(component 'format'\) {said}"):
        scored(both, PROMPTS, COMPLETIONS, {})
    with pytest.raises(ValueError, match=rf"\(component 'format'\) {said}"):
        both(PROMPTS, COMPLETIONS)


NO_SUM = {
    "a list": ([longness], None, "components must be a dictionary"),
    "nothing": ({}, None, "at least one reward function"),
    "no text": ({3: longness}, None, "name must be text of one line, got 3"),
    "two lines": ({"a\nb": longness}, None, "name must be text of one line"),
    "no name": ({"": longness}, None, "name must be text of one line"),
    "no function": ({"a": 1.0}, None, "'a' must be a function, got 1.0"),
    "a class": ({"a": Arithmetic}, None, "'a' must be a function"),
    "a weight too few": ({"a": len, "b": len}, [1.0], r"2 numbers.* a, b; got \[1"),
    "a number": ({"a": len}, 1.0, "weights must be 1 numbers"),
    "text": ({"a": len}, "1", "weights must be 1 numbers"),
    "NaN": ({"a": len}, [math.nan], "weight of 'a' must be a finite number"),
    "infinity": ({"a": len}, [math.inf], "weight of 'a' must be a finite number"),
    "words": ({"a": len}, ["one"], "weight of 'a' must be a finite number, got 'one'"),
    "True": ({"a": len}, [True], "weight of 'a' must be a finite number"),
}


@pytest.mark.parametrize(("parts", "weights", "said"), NO_SUM.values(), ids=NO_SUM)
def test_what_is_no_sum(parts, weights, said):
    with pytest.raises((TypeError, ValueError), match=said):
        Sum(parts, weights)


def test_a_sum_is_told_from_another_in_any_process():
    """A checkpoint must know it again: no address in memory, but the weights."""
    one = Sum({"near": closeness, "size": longness}, (1, 0.5))
    name = f"{__name__}."
    assert identity(one) == f"Sum(1·near={name}closeness + 0.5·size={name}longness)"
    assert identity(one) != identity(Sum(one.components, (1, 0.25)))


def test_a_run_logs_the_components_apart():
    """Without their weights, over all that was sampled; the reward is their sum."""
    parts = {"correct": Arithmetic.reward, "short": shortness}
    history = small_run(rollouts=2, reward=Sum(parts, (1.0, 0.5)))
    reward, correct, short = (
        history[name]
        for name in ("reward", "rewards/correct/mean", "rewards/short/mean")
    )
    for total, right, brief in zip(reward, correct, short):
        assert total == pytest.approx(right + 0.5 * brief, abs=1e-6)
        assert 0 < right < 1 and 0 < brief < 1
    assert "rewards/short/mean" not in small_run(rollouts=1).columns


def test_a_function_of_the_readers_own_may_have_components():
    """They are recorded, and pay nothing."""

    def lenient(completions, **_):
        return longness(completions)

    plain = small_run(rollouts=1, reward=lenient)
    lenient.components = {"short": shortness}
    recorded = small_run(rollouts=1, reward=lenient)
    row = {**recorded.rows[0], "step_time": plain["step_time"][0]}
    assert 0 < row.pop("rewards/short/mean") < 1
    assert row == plain.rows[0]


def test_components_of_all_rounds_are_counted():
    """Dynamic sampling draws again; the means are over what was drawn in all."""
    both = Sum({"correct": Arithmetic.reward, "none": returning_zeros})
    history = small_run(
        "dapo", rollouts=1, reward=both, group_size=2, max_sampling_rounds=4
    )
    assert history["sampling/rounds"][0] > 1
    assert history["rewards/correct/mean"] == pytest.approx(history["reward"])


def returning_zeros(completions, **_):
    return [0.0] * len(completions)


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
