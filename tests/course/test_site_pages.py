"""The site's made pages say what the code says, and leave no cell empty."""

import base64
import json
import re

import nbformat
import pytest

from course.kit import claims, methods
from course.kit.exercise import exercises
from experiments.claims import CLAIMS, SECOND
from refimpl.algorithms import ALGORITHMS
from web import bibliography, build, instructor, ledger, start
from web.exercises import Part, _exercise, _owners
from web.markdown import markdown
from web.page import NOTEBOOKS, Page, prose, text_of

pytestmark = pytest.mark.ci


def chapter(path) -> Page:
    """A chapter as a page without its pictures."""
    text = prose(path.stem)
    title = text.splitlines()[0].lstrip("# ")
    return Page(f"{path.stem}.html", title, markdown(text), "Chapters", path)


@pytest.fixture(scope="module")
def chapters() -> list[Page]:
    return [chapter(path) for path in sorted(NOTEBOOKS.glob("*.ipynb"))]


@pytest.fixture(scope="module")
def made(chapters) -> dict[str, Page]:
    return {page.file: page for page in build.made(chapters)}


EMPTY = r"<(t[dh]|d[dt]|li|h[1-3])\b[^>]*>\s*</\1>"


def test_no_cell_is_empty_and_every_page_has_a_title(made):
    for name, page in made.items():
        empty = re.findall(EMPTY, page.body)
        assert not empty and page.body.count("<h1 ") == 1, (name, empty)


def test_the_ledger_has_the_stored_verdicts_and_every_run_with_its_curve(made):
    body = made["ledger.html"].body
    found = re.findall(r'id="claim-(\w+)".*?data-verdict="([^"]+)"', body)
    lines = claims.judged() + claims.seconds()
    assert dict(found) == {c["claim"]: c["verdict"] for c in lines}
    script = made["ledger.html"].files["ledger-data.js"].decode()
    cells = json.loads(script.removeprefix("ledger(").removesuffix(");"))
    assert sum(len(cell["runs"]) for cell in cells) == len(claims.everything())
    owned = {str(number) for cell in cells for number in cell["claims"]}
    assert owned == {str(one.number) for one in (*CLAIMS, *SECOND)} == {*dict(found)}
    last = claims.everything().index[-1]
    drawn = [byte / 250 for byte in base64.b64decode(ledger.curve(last))]
    assert drawn == pytest.approx(claims.rows_of(last)["reward"].to_list(), abs=0.0021)


def test_the_bibliography_has_what_is_cited_and_no_more():
    """A title may be unknown where a method without a chapter alone cites the paper."""
    cited, known = bibliography.cited(), set(methods.KNOWN.papers)
    assert known <= set(cited)
    new = {f"{name}.py" for name in ALGORITHMS if not methods.of(name).chapter}
    unknown = {path.name for paper in set(cited) - known for path in cited[paper]}
    assert unknown <= new | {"methods.md"}  # the guide's row of it


@pytest.mark.parametrize("section", ["## Next", "### Next"])
def test_an_exercise_ends_where_a_section_begins(section):
    """Also an open project, which no cell checks."""
    head = "**3.4 · Mine** · project · difficulty 3 of 5 · 30 minutes"
    cells = [nbformat.v4.new_markdown_cell(text) for text in (head, "Try.", section)]
    assert _owners([Part(cell, "") for cell in cells]) == ["3.4", "3.4", ""]


def test_an_exercise_whose_cell_a_reader_rewrote_can_be_answered_on_the_page():
    head = nbformat.v4.new_markdown_cell("**3.3 · Mine** · write it")
    assert 'data-key="3.3"' in _exercise("3.3", [Part(head, "")], "x.ipynb")


def test_the_instructor_has_every_exercise(made, chapters):
    every = [one for page in chapters for one in instructor.told(page).asked]
    opened = instructor.OPEN
    checked = {one.key for one in every if one.kind != opened}
    known = exercises()
    assert checked == known.keys()
    assert all(1 <= one.minutes <= 60 for one in every if one.kind != opened)
    assert {one.difficulty for one in every} <= {1, 2, 3, 4, 5}
    titles = {one.key: one.title for one in every}
    text = text_of(made["instructor.html"].body)
    assert all(f"{one.key} {one.title}" in text for one in every)
    leads = [name for name, page in made.items() if "solutions.html" in page.body]
    assert leads == ["instructor.html"] and not made["solutions.html"].group
    solved = text_of(made["solutions.html"].body)
    assert all(f"{key} {titles[key]}" in solved for key in known)
    assert all(one.solution.__name__ in solved for one in known.values() if one.cases)


def test_the_start_page_lists_every_chapter_once(chapters):
    body = start.page(chapters).body
    missing = [one.file for one in chapters if f'href="{one.file}"' not in body]
    listed = [*start.CORE, *" ".join(start.NEEDS.values()).split(), "tour"]
    numbers = [instructor.told(one).number for one in chapters]
    assert missing == [] and sorted(listed) == sorted(numbers)
