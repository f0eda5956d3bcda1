"""What `python -m tests.tools.pages` counts on a page."""

import nbformat

from tests.tools import pages


def page(tmp_path, **metadata):
    """Six words, two visible lines of code and one folded, three pictures."""
    prose = '# One two\n\n![three](a.png) <img src="b.png" width="9">'
    picture = nbformat.v4.new_output(
        "display_data", {"image/png": "cGc="}, metadata={"image/png": metadata}
    )
    cells = [
        nbformat.v4.new_markdown_cell(prose),
        nbformat.v4.new_code_cell("a = 1\n\nb = 2", outputs=[picture]),
        nbformat.v4.new_code_cell("c = 3", metadata={"tags": ["hide-input"]}),
    ]
    path = tmp_path / "20_page.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_words_lines_and_pictures_are_counted(tmp_path):
    path = page(tmp_path, alt="a curve")
    assert pages.words(path) == len("# One two ![three](a.png) <img x y>".split())
    assert pages.visible(path) == 2
    assert pages.alternatives(path) == ["three", "", "a curve"]


def test_what_is_too_much_is_said(tmp_path, monkeypatch):
    path = page(tmp_path)
    assert pages.too_much(path) == ["2 pictures without an alternative text, at most 0"]
    for name in ("WORDS", "LINES", "PICTURES"):
        monkeypatch.setattr(pages, name, 1)
    assert len(pages.too_much(path)) == 4
