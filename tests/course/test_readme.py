"""README and guide say what is so: the table of methods, the files."""

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import refimpl
from tests.tools import tables
from web import instructor

ROOT = Path(__file__).resolve().parents[2]


def test_who_cites_the_course_cites_the_version_that_is_here():
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {refimpl.__version__}" in cited


PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted(ROOT.glob("notebooks/guide/*.md"))
PAGES += sorted(ROOT.glob("notebooks/*.ipynb"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_modules_that_a_page_asks_to_run_are_there(page):
    ours = r"python -m ((?:refimpl|course|experiments|web|tests)[\w.]*)"
    asked = set(re.findall(ours, page.read_text(encoding="utf-8")))
    assert [name for name in asked if importlib.util.find_spec(name) is None] == []


def test_the_readmes_minutes_are_those_of_the_website():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"notebooks/(\w+)\.ipynb\) \|.*\| (\d+) \|", readme)
    pages = [SimpleNamespace(file=f"{name}.html", title="") for name, _ in rows]
    counted = [str(instructor.told(page).minutes) for page in pages]
    assert counted == [minutes for _, minutes in rows]
    every = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    assert sorted(name for name, _ in rows) == every


@pytest.mark.parametrize("page", tables.MADE)
def test_the_guides_tables_are_the_registrys_and_the_measured_figures(page):
    _, text, now = tables.written(page)
    assert now == text, "run `python -m tests.tools.tables`"
