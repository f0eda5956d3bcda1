"""What a page without Python says to an answer is what the checker says."""

import pytest

from course.kit.answer_sheet import answer_sheet
from course.kit.exercise import ABSOLUTE, RELATIVE, exercises, verdict

WITHOUT_CODE = {key: one for key, one in exercises().items() if not one.cases}


def numbers_of(exercise) -> list:
    """Its solution and the answers that it has a reply for."""
    return [exercise.solution, *exercise.mistakes.values()]


NUMBERS = [
    key
    for key, exercise in WITHOUT_CODE.items()
    if all(isinstance(x, int | float) for x in numbers_of(exercise))
]


def checked(key, answer) -> str:
    mark, _, says = verdict(key, answer).split(" ", 2)
    return f"{mark} {says.strip()}"


def looked_up(sheet: dict, number: float) -> str:
    for low, high, says in sheet["replies"]:
        if low <= number <= high:
            return says
    return sheet["otherwise"].replace("{}", str(number))


@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_is_judged_alike_on_a_grid_and_beside_each_threshold(key):
    exercise = WITHOUT_CODE[key]
    sheet = answer_sheet(exercise)
    if exercise.choices:
        assert sheet["choices"] == [[*map(str, exercise.choices)]]
        return
    grid = [n / 10 for n in range(-25, 26)]
    for x in numbers_of(exercise):
        reach = ABSOLUTE + RELATIVE * abs(x)
        grid += [x + part * reach for part in (-1.01, -0.99, 0, 0.99, 1.01)]
    for x in grid:
        said, wanted = looked_up(sheet, x), checked(key, x)
        if "Your answer: " in wanted:  # the page shows the number as it was typed
            said, wanted = (one.split("Your answer: ")[0] for one in (said, wanted))
        assert said == wanted, x


def test_where_code_is_asked_for_there_is_no_sheet():
    asked = {key: one for key, one in exercises().items() if key not in WITHOUT_CODE}
    assert len(WITHOUT_CODE) > 55 and len(asked) > 20
    assert not any(map(answer_sheet, asked.values()))
