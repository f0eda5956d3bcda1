"""The instructor's page: order, minutes, exercises, and how answers are graded."""

import re
from typing import NamedTuple

from course.kit.exercise import exercises, typed_cells
from web.exercises import HEAD, solution
from web.page import Page, made, prose

PACE = 130
"""Words read per minute in technical prose, including its formulas and plots."""
TYPED = 5
"""Minutes for a function to type."""
TOUR = 60
"""Minutes of the tour: six pictures and five sentences take what reading leaves."""
OPEN = "project"
"""A kind of exercise with a rubric and no check."""
KINDS = (
    "write it",
    "predict, then run",
    "read this plot",
    "read this table",
    "find the bug in this run",
    "from memory",
    OPEN,
)


class Asked(NamedTuple):
    """An exercise as its chapter asks it."""

    key: str
    title: str
    kind: str
    difficulty: int
    minutes: int


class Told(NamedTuple):
    """A chapter's exercises, and its minutes in steps of five."""

    file: str
    title: str
    asked: list[Asked]
    reading: int
    exercises: int
    """Minutes of those that have a check, functions to type included."""
    projects: int

    @property
    def number(self) -> str:
        return self.file.removesuffix(".html").partition("_")[0]

    @property
    def minutes(self) -> int:
        return self.reading + 5 * round(self.exercises / 5)


def told(chapter: Page) -> Told:
    """Read a chapter's exercises from their headings, and count its minutes."""
    text = prose(chapter.file.removesuffix(".html"))
    listed = [
        Asked(key, title, kind, int(difficulty), int(minutes))
        for key, title, kind, difficulty, minutes in HEAD.findall(text)
    ]
    reading = 5 * round(len(re.findall(r"\w+", text)) / PACE / 5)
    long = sum(exercise.minutes for exercise in listed if exercise.kind == OPEN)
    short = sum(exercise.minutes for exercise in listed) - long
    number = chapter.file.partition("_")[0]
    short += TYPED * sum(key.partition(".")[0] == number for key in typed_cells())
    if chapter.file == "tour.html":
        short = TOUR - reading
    return Told(chapter.file, chapter.title, listed, reading, short, long)


def pages(group: str, chapters: list[Page]) -> list[Page]:
    every, known = [told(chapter) for chapter in chapters], exercises()
    return [
        made(
            "instructor",
            "The instructor's page",
            group,
            "Order and minutes of the chapters, exercises by difficulty and kind, how "
            "answers are graded, and solutions.",
            pace=PACE,
            kinds=KINDS,
            chapters=every,
            every=[exercise for chapter in every for exercise in chapter.asked],
            known=[*known.values()],
            mistakes=sum(len(exercise.mistakes) for exercise in known.values()),
        ),
        made("solutions", "Solutions", chapters=every, known=known, solution=solution),
    ]
