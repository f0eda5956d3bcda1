"""README and guide say what is so: the table of methods, the files."""

from pathlib import Path

import pytest

from refimpl.algorithms import ALGORITHMS
from tests import tables

ROOT = Path(__file__).resolve().parents[2]
SCREENS = 6 * 1024
"""Bytes of the README, which a reader gives thirty seconds."""


@pytest.mark.parametrize("page", tables.MADE)
def test_the_guides_tables_are_the_registrys_and_the_measured_figures(page):
    _, text, now = tables.written(page)
    assert now == text, "run `python -m tests.tables`"


def test_the_readme_is_short_and_leads_to_every_page_of_the_guide():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.encode()) <= SCREENS
    guide = [str(page.relative_to(ROOT)) for page in ROOT.glob("notebooks/guide/*")]
    assert [page for page in guide if f"]({page})" not in readme] == []


def test_the_file_of_every_method_fits_on_a_screen_or_two():
    for name in ALGORITHMS:
        lines = (ROOT / f"refimpl/algorithms/{name}.py").read_text("utf-8").count("\n")
        assert lines <= 90, name
