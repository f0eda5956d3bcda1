"""README, guide and CONTRIBUTING say what is so: the table of methods, the files."""

import re
from pathlib import Path

import pytest

from refimpl.algorithms import ALGORITHMS
from tests import tables

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("notebooks/guide/*")]
SCREENS = 6 * 1024
"""Bytes of the README, which a reader gives thirty seconds."""


def test_the_table_of_methods_is_the_registrys():
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.written(page) == page, "run `python -m tests.tables`"


def test_the_readme_is_short_and_leads_to_every_page_of_the_guide():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.encode()) <= SCREENS
    guide = [str(page.relative_to(ROOT)) for page in PAGES if "guide" in page.parts]
    assert [page for page in guide if f"]({page})" not in readme] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_it_links_to_is_there(page):
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_file_of_every_method_fits_on_a_screen_or_two():
    for name in ALGORITHMS:
        lines = (ROOT / f"refimpl/algorithms/{name}.py").read_text("utf-8").count("\n")
        assert lines <= 90, name
