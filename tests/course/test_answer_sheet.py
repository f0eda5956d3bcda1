"""What a page without Python says to an answer is what the checker says."""

import re

import nbformat
import pytest

from course.kit.answer_sheet import answer_sheet
from course.kit.exercise import ABSOLUTE, RELATIVE, exercises, verdict
from web.exercises import HEAD
from web.page import NOTEBOOKS

WITHOUT_CODE = {key: one for key, one in exercises().items() if not one.cases}
each = pytest.mark.parametrize("key", WITHOUT_CODE)


def tasks() -> dict[str, str]:
    """What the chapters ask, with the listings that belong to it, by key."""
    found, key = {}, ""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            prose = cell.cell_type == "markdown"
            head = HEAD.match(cell.source) if prose else None
            key = head["key"] if head else key
            texts = (
                [cell.source] if prose else [o.get("text", "") for o in cell.outputs]
            )
            found.setdefault(key, []).extend(texts)
    return {key: "\n".join(texts) for key, texts in found.items()}


TASKS = tasks()


def checked(key, answer) -> str:
    mark, _, says = verdict(key, answer).split(" ", 2)
    return f"{mark} {says.strip()}"


def looked_up(sheet: dict, number: float) -> str:
    for low, high, says in sheet["replies"]:
        if low <= number <= high:
            return says
    return sheet["otherwise"].replace("{}", str(number))


@each
def test_a_number_is_judged_alike_on_a_grid_and_beside_each_threshold(key):
    exercise = WITHOUT_CODE[key]
    numbers = [exercise.solution, *exercise.mistakes.values()]
    if not all(isinstance(x, int | float) for x in numbers):
        return
    sheet = answer_sheet(exercise)
    if exercise.choices:
        assert sheet["choices"] == [[*map(str, exercise.choices)]]
        return
    grid = [n / 10 for n in range(-25, 26)]
    for x in numbers:
        reach = ABSOLUTE + RELATIVE * abs(x)
        grid += [x + part * reach for part in (-1.01, -0.99, 0, 0.99, 1.01)]
    for x in grid:
        said, wanted = looked_up(sheet, x), checked(key, x)
        if "Your answer: " in wanted:  # the page shows the number as it was typed
            said, wanted = (one.split("Your answer: ")[0] for one in (said, wanted))
        assert said == wanted, x


@each
def test_each_choice_and_each_line_has_a_reply_of_its_own(key):
    """The task names every choice, one of which is right; all lines can be picked."""
    exercise, task = WITHOUT_CODE[key], TASKS[key]
    lines = re.findall(r"^ *(\d+)  ", task, re.M)
    bug = "find the bug" in task.splitlines()[0]
    assert bool(lines) == bug and lines == [str(n + 1) for n in range(len(lines))]
    sheet = answer_sheet(exercise, len(lines))
    if "choices" not in sheet:
        return
    replies = sheet["replies"]
    assert [says for says in replies.values() if says[0] == "✓"] == ["✓ Right."]
    if exercise.parts:
        assert len(exercise.parts) == len(exercise.solution)
        return
    answers = [*map(int, lines)] or exercise.choices
    assert all("Not that" not in says for says in replies.values()), replies
    assert replies == {str(one): checked(key, one) for one in answers}
    assert all(str(one) in task for one in answers)


def test_where_code_is_asked_for_there_is_no_sheet():
    asked = {key: one for key, one in exercises().items() if key not in WITHOUT_CODE}
    assert len(WITHOUT_CODE) > 55 and len(asked) > 20
    assert not any(map(answer_sheet, asked.values()))
