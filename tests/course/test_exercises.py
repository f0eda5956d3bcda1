"""Every solution passes, every known mistake is named, nothing passes by accident."""

import copy
import re

import pytest
import torch

from course.exercises import exercises, verdict

ALL = exercises()
MISTAKES = [(key, says) for key, e in ALL.items() for says in e.mistakes]
WITH_CASES = [key for key, e in ALL.items() if e.cases]


@pytest.mark.parametrize("key", ALL)
def test_the_solution_is_right(key):
    assert verdict(key, ALL[key].solution) == f"✓ {key}  Right."


@pytest.mark.parametrize(("key", "says"), MISTAKES)
def test_each_mistake_gets_its_own_message(key, says):
    assert verdict(key, ALL[key].mistakes[says]) == f"✗ {key}  {says}"


@pytest.mark.parametrize(
    ("key", "other"), [(key, other) for key, e in ALL.items() for other in e.also]
)
def test_a_right_answer_written_another_way_passes(key, other):
    assert verdict(key, other) == f"✓ {key}  Right."


@pytest.mark.parametrize("key", ALL)
def test_three_wrong_answers_are_known_by_name(key):
    assert len(ALL[key].mistakes) >= 3
    if ALL[key].kind == "write":
        assert ALL[key].also, "one right answer written another way"


WORDS = [key for key, e in ALL.items() if isinstance(e.solution, str)]
NUMBERS = [
    key for key, e in ALL.items() if not e.cases and isinstance(e.solution, int | float)
]


@pytest.mark.parametrize("key", WORDS)
def test_a_word_may_be_written_in_any_case(key):
    word = ALL[key].solution
    assert verdict(key, f" {word.swapcase()} ") == f"✓ {key}  Right."


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_in_quotation_marks_is_told_so(key):
    assert "without quotation marks" in verdict(key, str(ALL[key].solution))


@pytest.mark.parametrize("key", ALL)
def test_a_stub_is_not_an_attempt(key):
    def stub(*_): ...

    stub = stub if ALL[key].cases else ...
    assert "Not attempted yet" in verdict(key, stub)


@pytest.mark.parametrize("key", WITH_CASES)
def test_an_exception_is_reported_not_raised(key):
    def broken(*_):
        raise ZeroDivisionError("oh")

    assert verdict(key, broken) == f"✗ {key}  Your code raised ZeroDivisionError: oh"


@pytest.mark.parametrize("key", ALL)
def test_an_unknown_mistake_is_still_wrong(key):
    nonsense = (lambda *_: "nonsense") if ALL[key].cases else "nonsense"
    assert verdict(key, nonsense).startswith("✗")


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


@pytest.mark.parametrize("key", WITH_CASES)
def test_an_answer_may_change_its_arguments(key):
    """It is as right or as wrong as before, and the next one meets whole cases."""
    exercise, cases = ALL[key], repr(ALL[key].cases)
    assert verdict(key, spoiling(exercise.solution)) == f"✓ {key}  Right."
    for says, mistake in exercise.mistakes.items():
        assert verdict(key, spoiling(mistake)) == f"✗ {key}  {says}"
    assert verdict(key, spoiling(exercise.solution)) == f"✓ {key}  Right."
    assert repr(exercise.cases) == cases


def scaled_in_place(rewards):
    rewards -= rewards.mean(-1, keepdim=True)
    rewards /= rewards.std(-1, keepdim=True) + 1e-6
    return rewards


def centred_in_place(rewards):
    rewards -= rewards.mean(-1, keepdim=True)
    return rewards


def weights_in_place(lengths):
    batch = [1 / sum(lengths)] * len(lengths)
    lengths[:] = [1 / (len(lengths) * n) for n in lengths]
    return lengths, batch


def batch_weights_in_place(lengths):
    lengths[:] = [1 / sum(lengths)] * len(lengths)
    return lengths, lengths


def test_an_answer_that_is_its_argument_is_judged_as_any_other():
    """`rewards -= …; return rewards`, the way that people write it, twice over."""
    for _ in range(2):
        assert verdict("3.1", scaled_in_place) == "✓ 3.1  Right."
        assert "You forgot the std" in verdict("3.1", centred_in_place)
        assert verdict("3.5", weights_in_place) == "✓ 3.5  Right."
        assert verdict("3.5", batch_weights_in_place).startswith("✗ 3.5  ")


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
