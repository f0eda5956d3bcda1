"""Every solution passes, every known mistake is named, nothing passes by accident."""

import copy
import re

import pytest
import torch

from course.exercises import exercises, verdict

ALL = exercises()
each = pytest.mark.parametrize("key", ALL)


def right(key):
    return f"✓ {key}  Right."


def named(key, says):
    return f"✗ {key}  {says}"


@each
def test_right_answers_pass_and_each_mistake_gets_its_own_message(key):
    exercise = ALL[key]
    for answer in (exercise.solution, *exercise.also):
        assert verdict(key, answer) == right(key)
    for says, mistake in exercise.mistakes.items():
        assert verdict(key, mistake) == named(key, says)
    assert len(exercise.mistakes) >= 3
    if exercise.kind == "write":
        assert exercise.also, "one right answer written another way"


@each
def test_what_is_neither_right_nor_known(key):
    """A stub is no attempt, nonsense is wrong, an exception is reported and not raised.

    A word may be written in any case; a number in quotation marks is told so.
    """

    def stub(*_): ...

    def broken(*_):
        raise ZeroDivisionError("oh")

    exercise = ALL[key]
    cases, solution = exercise.cases, exercise.solution
    assert "Not attempted yet" in verdict(key, stub if cases else ...)
    assert verdict(key, (lambda *_: "nonsense") if cases else "nonsense")[0] == "✗"
    if cases:
        reply = verdict(key, broken)
        assert reply == named(key, "Your code raised ZeroDivisionError: oh")
    elif isinstance(solution, str):
        assert verdict(key, f" {solution.swapcase()} ") == right(key)
    elif isinstance(solution, int | float):
        assert "without quotation marks" in verdict(key, str(solution))


def spoiling(answer):
    """`answer`, which leaves nothing of its arguments."""

    def spoiled(*arguments):
        result = copy.deepcopy(answer(*arguments) if callable(answer) else answer)
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                argument.zero_()
            elif isinstance(argument, list):
                argument.clear()
        return result

    return spoiled


@pytest.mark.parametrize("key", [key for key, e in ALL.items() if e.cases])
def test_an_answer_may_change_its_arguments(key):
    """It is as right or as wrong as before, and the next one meets whole cases."""
    exercise, cases = ALL[key], repr(ALL[key].cases)
    for says, mistake in exercise.mistakes.items():
        assert verdict(key, spoiling(mistake)) == named(key, says)
        assert verdict(key, spoiling(exercise.solution)) == right(key)
    assert repr(exercise.cases) == cases


def test_keys_difficulties_and_the_number_of_exercises():
    chapters = {}
    for key, exercise in ALL.items():
        assert re.fullmatch(r"\d+\.\d+", key)
        assert 1 <= exercise.difficulty <= 5 and 1 <= exercise.minutes <= 60
        chapters.setdefault(key.split(".")[0], []).append(key)
    assert all(len(keys) >= 3 for keys in chapters.values()), chapters
    with pytest.raises(KeyError, match="no exercise"):
        verdict("99.9", 1)
