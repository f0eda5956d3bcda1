"""The checker's replies, prepared in advance for a page that has no Python.

A reader of the web edition picks a line of a listing, a word, a pair of words, or types
a number. Each possible choice is put to the checker here, and its reply is stored; for
numbers the sheet stores the bounds within which each reply holds.
"""

import itertools
from collections.abc import Sequence
from typing import Any

from course.kit.exercise import ABSOLUTE, RELATIVE, Exercise, judged


def answer_sheet(exercise: Exercise, lines: int = 0) -> dict[str, Any] | None:
    """The replies to every answer, as JSON can hold them; None where code is asked for.

    `lines` is the length of the listing, if one of its lines is wanted.
    `choices` has a list of answers for each part of the answer, and `replies` maps the
    answers, joined by commas, to what is said. Where a number is typed there are no
    choices: then `replies` has rows of lowest and highest number and what is said, of
    which the first counts, and `otherwise` says the rest, with {} for the number.
    """
    if exercise.cases:
        return None
    if exercise.parts:
        return _chosen(exercise, exercise.choices or _of_each_part(exercise))
    if lines:
        return _chosen(exercise, [range(1, lines + 1)])
    if exercise.choices:
        return _chosen(exercise, [exercise.choices])
    numbers = (exercise.solution, *exercise.mistakes.values())
    replies = [[*_bounds(x), reply(exercise, x)] for x in numbers]
    if exercise.decimals is not None:
        half = 0.5 / 10**exercise.decimals  # what is nearer is rounded to it
        short = [x for x in numbers if round(x, exercise.decimals) == x]
        replies += [[x - half, x + half, reply(exercise, x)] for x in short]
    nothing = reply(exercise, float("nan"))  # agrees with no number
    return {
        "replies": replies,
        "otherwise": nothing.replace("nan", "{}"),
    }


def reply(exercise: Exercise, answer: Any) -> str:
    """What the checker says, without the exercise's number."""
    return judged(exercise, answer).replace(f" {exercise.key}  ", " ", 1)


def _chosen(exercise: Exercise, choices: Sequence[Sequence]) -> dict[str, Any]:
    replies = {}
    for answer in itertools.product(*choices):
        one = answer if len(answer) > 1 else answer[0]
        replies[", ".join(map(str, answer))] = reply(exercise, one)
    return {"choices": [[*map(str, part)] for part in choices], "replies": replies}


def _of_each_part(exercise: Exercise) -> list[list]:
    """Every value in an answer is offered as a choice for each of its parts."""
    answers = (exercise.solution, *exercise.mistakes.values())
    known = sorted({one for answer in answers for one in answer})
    return [known for _ in exercise.parts]


def _bounds(x: float) -> tuple[float, float]:
    reach = ABSOLUTE + RELATIVE * abs(x)
    return x - reach, x + reach
