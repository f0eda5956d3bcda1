"""A chapter's exercises: answered in the page, or, where code is asked for, told.

What can be answered without code has buttons or a field, and beside them the checker's
replies to all that can be given (`course.kit.answer_sheet`); `exercises.js` looks them
up. The others show their task, and a solution behind a fold.
"""

import html
import inspect
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nbformat import NotebookNode
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from course.kit.answer_sheet import answer_sheet
from course.kit.exercise import Exercise, exercises
from web.markdown import markdown
from web.page import SiteError

HEAD = re.compile(
    r"^\*\*(?P<key>\d+b?\.\d+) · (?P<title>.+?)\*\* · (?P<kind>.+?) · "
    r"difficulty (?P<difficulty>\d) of 5 · (?P<minutes>\d+) minutes",
    re.M,
)
IN_A_NOTEBOOK = re.compile(r"(?:In every [^#]*?)?Solutions: `[^`]*\.py`\.")
"""How an exercise is done there. On the page this is said instead:"""
IN_THE_PAGE = "Answer in the page; what asks for code is checked in the notebook."
LISTING = re.compile(
    r"<pre[^>]*>(?:<code>)?(?P<lines> *1  .*?)(?:</code>)?</pre>", re.S
)


class Part(NamedTuple):
    """A cell, and what the page shows of it."""

    cell: NotebookNode
    shown: str


def gathered(parts: Sequence[Part], notebook: str) -> Iterator[str]:
    """The parts as HTML, those of an exercise in a section of its own.

    Raises `SiteError` for an exercise that nothing checks.
    """
    owners = _owners(parts)
    for key, own in itertools.groupby(zip(owners, parts), lambda one: one[0]):
        some = [part for _, part in own]
        if key:
            yield f'<section class="exercise" id="exercise-{key}" data-key="{key}">'
            yield from _exercise(key, some, notebook)
            yield "</section>"
        else:
            yield from (part.shown for part in some)


def _owners(parts: Sequence[Part]) -> list[str]:
    """For each part the exercise that it belongs to, or an empty text."""
    key, asked, owners = "", False, []
    for cell, _ in parts:
        if cell.cell_type == "markdown":
            head = HEAD.match(cell.source)
            # The prose after the checker's cell goes on with the chapter.
            if head or asked or re.search("^## ", cell.source, re.M):
                key, asked = head["key"] if head else "", False
        elif key and f'check("{key}"' in cell.source:
            asked = True
        owners.append(key)
    return owners


def _exercise(key: str, parts: list[Part], notebook: str) -> Iterator[str]:
    exercise = exercises().get(key)
    if exercise is None:  # an open experiment
        yield from (part.shown for part in parts)
        yield _way("Try it in the notebook", notebook)
        return
    asks = [i for i, part in enumerate(parts) if f'check("{key}"' in part.cell.source]
    if not asks:
        raise SiteError(f"{notebook}: nothing checks exercise {key}")
    before = "".join(part.shown for part in parts[: asks[0]])
    after = "".join(part.shown for part in parts[asks[0] + 1 :])
    hidden = any(is_hidden(part.cell) for part in parts[asks[0] + 1 :])
    if exercise.cases:
        yield before + _in_colour(_stub(parts[asks[0]].cell.source))
        yield _way("Write it in the notebook, which names the mistake", notebook)
    else:
        yield _answerable(exercise, before)
    yield fold("Solution", solution(exercise))
    if after:
        yield after if hidden else fold("The next cell, run", after)


def is_hidden(cell: NotebookNode) -> bool:
    """Its output is folded, because it answers a question that stands above."""
    return cell.metadata.get("jupyter", {}).get("outputs_hidden", False)


def _stub(source: str) -> str:
    """What the reader is to fill in, without the call of the checker."""
    return re.sub(r"\s*^check\(.*", "", source, flags=re.M | re.S)


def solution(exercise: Exercise) -> str:
    """A function's code, or the answer and why."""
    answer = exercise.solution
    if callable(answer):
        return _in_colour(inspect.getsource(answer))
    words = ", ".join(map(str, answer)) if isinstance(answer, list | tuple) else answer
    return markdown(f"The answer is `{words}`. {exercise.why}")


def _in_colour(code: str) -> str:
    shown = highlight(code, PythonLexer(), HtmlFormatter())
    return shown.replace("<pre>", '<pre tabindex="0">', 1)


def _way(words: str, notebook: str) -> str:
    return f'<p class="way">{words}: <code class="notebook">{notebook}</code></p>'


def fold(summary: str, shown: str) -> str:
    head = f"<summary>{summary}</summary>"
    return f'<details class="fold answered">{head}{shown}</details>'


def _answerable(exercise: Exercise, asked: str) -> str:
    """What is asked, and the form; behind a listing, whose lines are its buttons."""
    listing = LISTING.search(asked)
    if not listing or exercise.parts:
        return asked + _form(exercise)
    lines = listing["lines"].rstrip().split("\n")
    buttons = "".join(
        f'<button type="button" value="{n}">{line}\n</button>'
        for n, line in enumerate(lines, 1)
    )
    before, behind = asked[: listing.start()], asked[listing.end() :]
    form = _form(exercise, len(lines))
    return f'{before}<pre class="listing">{buttons}</pre>{form}{behind}'


def _form(exercise: Exercise, lines: int = 0) -> str:
    sheet = answer_sheet(exercise, lines)
    table = json.dumps(sheet, ensure_ascii=False).replace("<", r"\u003c")
    if exercise.parts:
        asked = "".join(map(_selection, exercise.parts, sheet["choices"])) + CHECK
    elif lines:
        asked = "<p>Pick the line.</p>"
    elif exercise.choices:
        asked = "".join(map(_button, sheet["choices"][0]))
    else:
        asked = f"<label>Your answer {NUMBER}</label>{CHECK}"
    return (
        f'<form class="answer">{asked}<output></output></form>'
        f'<script type="application/json">{table}</script>'
    )


CHECK = '<button type="submit">Check</button>'
NUMBER = '<input type="number" step="any" required autocomplete="off">'


def _button(choice: str) -> str:
    choice = html.escape(choice)
    return f'<button type="button" value="{choice}">{choice}</button>'


def _selection(part: str, choices: list[str]) -> str:
    options = "".join(f"<option>{html.escape(one)}</option>" for one in choices)
    menu = f'<select required><option value="">choose</option>{options}</select>'
    return f"<label>{html.escape(part)} {menu}</label>"
