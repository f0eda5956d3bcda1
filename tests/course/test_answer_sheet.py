"""What a page without Python says to an answer is what the checker says."""

import math

import pytest

from course.kit.answer_sheet import answer_sheet
from course.kit.exercise import ABSOLUTE, RELATIVE, exercises, verdict

WITHOUT_CODE = {key: one for key, one in exercises().items() if not one.cases}
TYPED = [key for key, one in WITHOUT_CODE.items() if not (one.choices or one.parts)]
"""Exercises whose answer is a number, typed into a field."""
CHOSEN = [key for key in WITHOUT_CODE if key not in TYPED]


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


@pytest.mark.parametrize("key", TYPED)
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
