"""A chapter's exercises: answered on the page, or shown if they ask for code.

What can be answered without code has buttons or a field, and the checker's replies to
all possible answers (`course.kit.answer_sheet`), which `exercises.js` looks up. The
others show their task, and a solution behind a fold.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nbformat import NotebookNode

from course.kit.answer_sheet import answer_sheet
from course.kit.exercise import Exercise, exercises, solved_text
from web.markdown import in_colour, markdown
from web.page import TEMPLATES

HEAD = re.compile(
    r"^\*\*(?P<key>\d+b?\.\d+) · (?P<title>.+?)\*\* · (?P<kind>.+?) · "
    r"difficulty (?P<difficulty>\d) of 5 · (?P<minutes>\d+) minutes",
    re.M,
)
IN_A_NOTEBOOK = re.compile(
    r"(?:Replace `\.\.\.`[^#]*?)?`kit\.solution\(\"[^\"]+\"\)` shows a solution\."
)
"""How to do an exercise in a notebook; the page replaces this by `IN_THE_PAGE`."""
IN_THE_PAGE = (
    "Answer on this page; exercises that ask for code are checked in the notebook."
)
LISTING = re.compile(
    r"<pre[^>]*>(?:<code>)?(?P<lines> *1  .*?)(?:</code>)?</pre>", re.S
)
CALL = re.compile(r"\s*^[\w.]*check\(.*", re.M | re.S)
"""The call of the checker, after the code that the reader fills in."""


class Part(NamedTuple):
    """A cell, and what the page shows of it."""

    cell: NotebookNode
    shown: str


def gathered(parts: Sequence[Part], notebook: str) -> Iterator[str]:
    """Yield the parts as HTML, those of an exercise in a section of its own."""
    owners = _owners(parts)
    for key, members in itertools.groupby(zip(owners, parts), lambda pair: pair[0]):
        some = [part for _, part in members]
        shown = (part.shown for part in some)
        yield _exercise(key, some, notebook) if key else "\n".join(shown)


def _owners(parts: Sequence[Part]) -> list[str]:
    """Return the exercise that each part belongs to, or an empty text."""
    key, checked, owners = "", False, []
    for cell, _ in parts:
        if cell.cell_type == "markdown":
            head = HEAD.match(cell.source)
            # The prose after the checker's cell belongs to the chapter again.
            if head or checked or re.search("^###? ", cell.source, re.M):
                key, checked = head["key"] if head else "", False
        elif key and f'check("{key}"' in cell.source:
            checked = True
        owners.append(key)
    return owners


def _exercise(key: str, parts: list[Part], notebook: str) -> str:
    exercise = exercises().get(key)  # None: an open experiment
    checks = [i for i, part in enumerate(parts) if f'check("{key}"' in part.cell.source]
    at = checks[0] if checks else len(parts)  # a reader may have rewritten that cell
    before = "".join(part.shown for part in parts[:at])
    given: dict[str, Any] = {"lines": [], "behind": ""}
    if exercise and exercise.cases:
        written = parts[at].cell.source if checks else "…"
        given["stub"] = in_colour(CALL.sub("", written))
    elif exercise:
        listing = LISTING.search(before)
        if listing and not exercise.parts:  # its lines are the form's buttons
            given["lines"] = listing["lines"].rstrip().split("\n")
            given["behind"] = before[listing.end() :]
            before = before[: listing.start()]
        given["sheet"] = answer_sheet(exercise, len(given["lines"]))
    return TEMPLATES.get_template("exercise.html.j2").render(
        key=key,
        notebook=notebook,
        exercise=exercise,
        before=before,
        after="".join(part.shown for part in parts[at + 1 :]),
        hidden=any(is_hidden(part.cell) for part in parts[at + 1 :]),
        solution=solution(exercise) if exercise else "",
        **given,
    )


def is_hidden(cell: NotebookNode) -> bool:
    """True if a cell's output is folded, because it answers the question above."""
    return "hide-output" in cell.metadata.get("tags", ())


def solution(exercise: Exercise) -> str:
    """Return what `kit.solution` shows."""
    return markdown(solved_text(exercise))
