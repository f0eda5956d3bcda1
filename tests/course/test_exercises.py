"""Every solution passes, every known mistake is named, nothing passes by accident."""

import copy
import re

import pytest
import torch

from course.exercises import exercises, verdict

ALL = exercises()
MISTAKES = [(key, says) for key, e in ALL.items() for says in e.mistakes]


@pytest.mark.parametrize("key", ALL)
def test_the_solution_is_right(key):
    assert verdict(key, ALL[key].solution) == f"✓ {key}  Right."


@pytest.mark.parametrize(("key", "says"), MISTAKES)
def test_each_mistake_gets_its_own_message(key, says):
    assert verdict(key, ALL[key].mistakes[says]) == f"✗ {key}  {says}"


@pytest.mark.parametrize("key", ALL)
def test_a_stub_is_not_an_attempt(key):
    def stub(*_): ...

    stub = stub if ALL[key].cases else ...
    assert "Not attempted yet" in verdict(key, stub)


@pytest.mark.parametrize("key", [k for k, e in ALL.items() if e.cases])
def test_an_exception_is_reported_not_raised(key):
    def broken(*_):
        raise ZeroDivisionError("oh")

    assert verdict(key, broken) == f"✗ {key}  Your code raised ZeroDivisionError: oh"


@pytest.mark.parametrize("key", ALL)
def test_an_unknown_mistake_is_still_wrong(key):
    nonsense = (lambda *_: "nonsense") if ALL[key].cases else "nonsense"
    assert verdict(key, nonsense).startswith("✗")


@pytest.mark.parametrize("key", [k for k, e in ALL.items() if e.cases])
def test_an_answer_may_change_its_arguments(key):
    """It is as right or as wrong as before, and the next one meets whole cases."""

    def spoil(*arguments):
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                argument.zero_()
            elif isinstance(argument, list):
                argument.clear()

    def in_place(*arguments):
        answer = copy.deepcopy(ALL[key].solution(*arguments))
        spoil(*arguments)
        return answer

    for _ in range(2):
        assert verdict(key, in_place) == f"✓ {key}  Right."
    says, mistake = next(iter(ALL[key].mistakes.items()))
    assert verdict(key, mistake) == f"✗ {key}  {says}"


def test_an_unknown_exercise_is_an_error():
    with pytest.raises(KeyError, match="no exercise"):
        verdict("99.9", 1)


def test_every_chapter_has_three_and_says_how_hard_they_are():
    chapters = {}
    for key, exercise in ALL.items():
        assert re.fullmatch(r"\d+\.\d+", key)
        assert 1 <= exercise.difficulty <= 5 and 1 <= exercise.minutes <= 60
        assert exercise.mistakes, f"{key} recognises no mistake"
        chapters.setdefault(key.split(".")[0], []).append(key)
    assert all(len(keys) >= 3 for keys in chapters.values()), chapters
