"""What the web edition's build leaves out and names, and what it refuses.

A refusal is one sentence, and the earlier site stays.
"""

import base64
import io
import json
import sys

import nbformat
import pytest
from PIL import Image

from course.kit.explorer import STORED
from web import __main__, build, glossary, page, start
from web.page import Page, SiteError

pytestmark = pytest.mark.ci
GATE = "10_gate.json"
PICTURE = io.BytesIO()
Image.new("RGB", (9, 9)).save(PICTURE, "png")
STILL = {"still": "a hash"}
PROSE = "![a](a.png) [b](guide/notation.md#glossary) $x$"
SHOWN = nbformat.v4.new_output(
    "display_data",
    {
        "image/png": base64.b64encode(PICTURE.getvalue()).decode(),
        "text/plain": "Explorer()",
        STORED: {"table": "10_gate"},
    },
    metadata={"image/png": {"alt": "a gate"}, STORED: STILL},
)

AT_THE_FOOT = [
    Page("after.html", "After", '<h2 id="cite">1</h2><h2 id="error">2</h2>'),
    Page("run.html", "Run", ""),
]
"""The pages to which every page's last line leads."""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of one chapter with an explorer, and the site that was made of it."""
    (tmp_path / "guide").mkdir()
    for name in ("notation", "methods"):
        (tmp_path / f"guide/{name}.md").write_text(f"# {name}\n\n## Glossary\n")
    (tmp_path / "a.png").write_bytes(PICTURE.getvalue())
    (tmp_path / GATE).write_text(json.dumps(STILL))
    cells = [
        nbformat.v4.new_markdown_cell("# 10 · Gate"),
        nbformat.v4.new_code_cell("show()", execution_count=1, outputs=[SHOWN]),
        nbformat.v4.new_markdown_cell(PROSE),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "10_gate.ipynb")
    for module in (build, page):
        monkeypatch.setattr(module, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(build, "TABLES", tmp_path)
    monkeypatch.setattr(build, "made", lambda _: AT_THE_FOOT)
    monkeypatch.setattr(start, "page", lambda _: Page("index.html", "Start", ""))
    monkeypatch.setattr(sys, "argv", ["web", str(tmp_path / "site")])
    __main__.main()
    return tmp_path


def refused(course) -> str:
    """The sentence with which the build ends; what was made before stands."""
    before = {one: one.stat().st_mtime_ns for one in course.rglob("site/*")}
    with pytest.raises(SystemExit) as end:
        __main__.main()
    said = str(end.value)  # a text as the exit's code: printed, and the status is 1
    assert {one: one.stat().st_mtime_ns for one in course.rglob("site/*")} == before
    assert "\n" not in said and not list(course.glob(".site-*"))
    return said


def change(course, number: int, how: dict) -> None:
    path = course / "10_gate.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[number] = nbformat.from_dict(notebook.cells[number] | how)
    nbformat.write(notebook, path)


WORDS = nbformat.v4.new_output("stream", text="done")
LIVE = SHOWN | {"data": {"application/vnd.jupyter.widget-view+json": {}}}
WORKED = {
    "its picture has no altern": {"outputs": [SHOWN | {"metadata": {}}, WORDS]},
    "no page shows an output of application/vnd.jupyter.widget": {
        "outputs": [LIVE, WORDS]
    },
    "it was not run": {"execution_count": None, "outputs": [WORDS]},
}


def test_what_a_worked_chapter_holds_is_left_out_and_named(course, capsys):
    """An explorer without its tables, a bar's widget, a plot of one's own, a running
    cell. All else is shown."""
    for tables in ("{", '{"still": "x"}', None):
        (course / GATE).write_text(tables) if tables else (course / GATE).unlink()
        __main__.main()
        assert "left out: 10_gate.ipynb, cell 1: " in capsys.readouterr().out
    for said, how in WORKED.items():
        change(course, 1, how)
        __main__.main()
        assert f"left out: 10_gate.ipynb, cell 1: {said}" in capsys.readouterr().out
        page = (course / "site/10_gate.html").read_text(encoding="utf-8")
        assert ">done</pre>" in page


FAULTS = {
    "shows a.png without an altern": '<img src="a.png">',
    "shows b.png, which does not exist": "![b](b.png)",
    "links to b.md, which does not exist": "[b](b.md)",
    "links to guide/methods.md#b, an anchor": "[b](guide/methods.md#b)",
    "links to #b, an anchor": "[b](#b)",
    r"invalid formula: $\left( x$": r"$\left( x$",
    r"invalid formula: $\fracc x$": r"$\fracc x$",
}


def test_what_a_reader_would_miss_is_named_with_its_cell(course):
    for said, text in FAULTS.items():
        change(course, 2, {"source": text})
        found = refused(course)
        assert "10_gate.ipynb, cell 2" in found and said in found


def test_a_dead_link_of_a_page_that_no_file_holds_is_named(course, monkeypatch):
    for target, how in (
        ("gone.html", "a href"),
        ("run.html#gone", "a href"),
        ("#gone", "a href"),
        ("g", "b src"),
    ):
        page = Page("new.html", "New", f'<{how}="{target}">gone')
        monkeypatch.setattr(build, "made", lambda _, page=page: [*AT_THE_FOOT, page])
        assert f"new.html links to {target}" in refused(course)


def test_where_no_site_can_stand_is_said_before_the_work(course, monkeypatch):
    """A folder that holds something else stays."""
    monkeypatch.setattr(build, "guide", lambda: pytest.fail("work was done"))
    (course / "site/search-index.js").unlink()
    assert "site holds something other than a site" in refused(course)
    for place in ("a.png", "a.png/site", "a.png/deep/site"):
        monkeypatch.setattr(sys, "argv", ["web", str(course / place)])
        assert "a.png" in refused(course)


def test_a_term_is_explained_where_it_is_marked_and_nowhere_else(monkeypatch):
    body = (
        "<p>Does the push end?</p>\n<h2>The push</h2>\n<p>They push. Then the\npush "
        "is a factor, the push is <b>large</b>, and the push is small.</p>"
    )
    page, terms = Page("01_x.html", "x", body), {"push": "notation.html#push"}
    monkeypatch.setattr(glossary, "MARKED", {"01_x": ["the [push] is"]})
    link = '<a class="term" href="notation.html#push">push</a>'
    linked = body.replace("the\npush is a", f"the\n{link} is a")
    assert glossary.explained(page, terms).body == linked
    phrases = ["They [push]", "Does the [push]", "no [push]"]
    monkeypatch.setattr(glossary, "MARKED", {"01_x": phrases})
    with pytest.raises(SiteError, match=r"no longer says Does the \[push\], no \[push"):
        glossary.explained(page, terms)
    with pytest.raises(SiteError, match="no term 'push'"):
        glossary.explained(page, {})
