"""The instructor's page: order, minutes, exercises, how answers are graded."""

import html
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import nbformat

from course.kit.exercise import Exercise, exercises
from web.exercises import HEAD, solution
from web.page import NOTEBOOKS, Page, table

PACE = 130
"""Words of technical prose that one reads in a minute, formulas and plots looked at."""
OPEN = "project"
"""Has a rubric and no check."""
KINDS = (
    "write it",
    "predict, then run",
    "read this plot",
    "find the bug in this run",
    OPEN,
)


class Asked(NamedTuple):
    """An exercise as its chapter asks it."""

    key: str
    title: str
    kind: str
    difficulty: int
    minutes: int


def pages(group: str, chapters: list[Page]) -> list[Page]:
    return [page(group, chapters), solutions(chapters)]


def page(group: str, chapters: list[Page]) -> Page:
    every = [one for chapter in chapters for one in asked(chapter)]
    body = (
        f'<h1 id="top">The instructor\'s page</h1>{LEAD}'
        f'<h2 id="order">Order and minutes</h2>{order(chapters)}'
        f'<h2 id="kinds">Exercises by difficulty and kind</h2>{matrix(every)}'
        f'<h2 id="exercises">Every exercise</h2>{listed(chapters)}'
        f'<h2 id="grading">How answers are graded</h2>{grading(every)}'
    )
    return Page(
        "instructor.html",
        "The instructor's page",
        body,
        group,
        summary="Order and minutes of the chapters, exercises by difficulty and kind, "
        "how answers are graded, and solutions.",
    )


LEAD = f"""<p>The chapters build on each other in this order; 02b is
an elective, 10b an appendix.
Reading is counted at {PACE} words a minute. Exercises and projects are counted
as their headings say. Running a chapter's cells takes some minutes more.</p>"""


@cache
def prose(stem: str) -> str:
    """A chapter's Markdown."""
    cells = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4).cells
    # A heading right below </details> would be read as HTML.
    return "\n\n".join(c.source for c in cells if c.cell_type == "markdown")


def asked(chapter: Page) -> list[Asked]:
    """The exercises of a chapter, read off their headings."""
    found = HEAD.finditer(prose(stem(chapter)))
    return [
        Asked(
            one["key"],
            one["title"],
            one["kind"],
            int(one["difficulty"]),
            int(one["minutes"]),
        )
        for one in found
    ]


def stem(chapter: Page) -> str:
    return Path(chapter.file).stem


def reading(chapter: Page) -> int:
    """Minutes, in steps of five."""
    words = len(re.findall(r"\w+", prose(stem(chapter))))
    return 5 * round(words / PACE / 5)


def minutes(chapter: Page) -> int:
    """Of reading and of the exercises that have a check, in steps of five."""
    return reading(chapter) + 5 * round(parted(asked(chapter))[0] / 5)


def order(chapters: list[Page]) -> str:
    rows, sums = [], [0, 0, 0]
    for chapter in chapters:
        short, long = parted(asked(chapter))
        minutes = [reading(chapter), short, long]
        sums = [a + b for a, b in zip(sums, minutes)]
        rows.append(
            [
                f'<a href="{chapter.file}">{html.escape(chapter.title)}</a>',
                *map(str, minutes),
            ]
        )
    rows.append(["all", *map(str, sums)])
    head = ["chapter", "reading, min", "exercises, min", "projects, min"]
    return table(head, rows)


def number(chapter: Page) -> str:
    return chapter.file.split("_")[0]


def parted(every: list[Asked]) -> tuple[int, int]:
    """Minutes of the exercises with a check, and of the projects."""
    long = sum(one.minutes for one in every if one.kind == OPEN)
    return sum(one.minutes for one in every) - long, long


def matrix(every: list[Asked]) -> str:
    """How many exercises there are of each kind and difficulty, and their minutes."""
    rows = []
    for kind in [*KINDS, "all"]:
        own = [one for one in every if kind in (one.kind, "all")]
        by_level = ([one for one in own if one.difficulty == d] for d in LEVELS)
        rows.append([html.escape(kind), *map(amount, by_level), amount(own)])
    head = ["kind", *(f"difficulty {d}" for d in LEVELS), "all"]
    return table(head, rows, "Number of exercises, and their minutes together")


LEVELS = range(1, 6)


def amount(some: list[Asked]) -> str:
    minutes = sum(one.minutes for one in some)
    return f"{len(some)} ({minutes}&nbsp;min)" if some else "none"


def listed(chapters: list[Page]) -> str:
    rows = [
        [
            f'<a href="{chapter.file}#exercises">{one.key}</a>',
            html.escape(one.title),
            html.escape(one.kind),
            f"{one.difficulty} of 5",
            f"{one.minutes} min",
        ]
        for chapter in chapters
        for one in asked(chapter)
    ]
    return table(["exercise", "title", "kind", "difficulty", "minutes"], rows)


def grading(every: list[Asked]) -> str:
    known = exercises().values()
    mistakes = sum(len(one.mistakes) for one in known)
    free = sum(one.kind == OPEN for one in every)
    here = sum(not one.cases for one in known)
    return f"""<p>{len(known)} exercises are graded by <code>check(key, answer)</code>
in the notebook, without a network. A function is called with a few cases, a number or
a word is compared as it is. Numbers agree within a relative 1e-4, words whatever their
case. {here} of them ask for no code: they are answered in the chapter's page, too, and
the replies are the same. The reply is one of four:</p>
<ul>
<li>The answer agrees with the solution: it is right.</li>
<li>It agrees with one of {mistakes} known mistakes: the reply names that mistake.</li>
<li>It differs: the reply shows the first case, the answer, and what it should be. Where
there is no case, it says only that the answer is wrong.</li>
<li>The code raised an error, or nothing was attempted: the reply says so.</li>
</ul>
<p>{free} projects have a rubric in the chapter instead of a check: a prediction
made before the runs, equal conditions for all arms, and an explanation.
<a href="solutions.html">The solutions</a> stand on a page of their own, and behind a
fold below each exercise.</p>"""


def solutions(chapters: list[Page]) -> Page:
    known, parts = exercises(), []
    for chapter in chapters:
        checked = [one for one in asked(chapter) if one.key in known]
        if not checked:  # an appendix
            continue
        name = number(chapter)
        parts.append(f'<h2 id="chapter-{name}">Chapter {name}</h2>')
        parts += [solved(one, known[one.key]) for one in checked]
    lead = (
        '<h1 id="top">Solutions</h1><p>One way to answer each exercise, as the '
        'checkers know it. <a href="instructor.html">Back to the instructor</a>.</p>'
    )
    return Page("solutions.html", "Solutions", lead + "".join(parts))


def solved(one: Asked, exercise: Exercise) -> str:
    return f"<h3>{one.key} {html.escape(one.title)}</h3>{solution(exercise)}"
