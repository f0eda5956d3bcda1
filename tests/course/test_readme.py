"""README and guide say what is so: the table of methods, the files."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import refimpl
from tests.tools import front_door, tables

ROOT = Path(__file__).resolve().parents[2]


TOP = """.ci .devcontainer .github .gitignore CHANGELOG.md CITATION.cff CONTRIBUTING.md
LICENSE README.md SECURITY.md figures notebooks pyproject.toml refimpl
requirements-dev.txt requirements.txt tests""".split()


def test_nothing_lies_about_at_the_top():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True)
    if not listed.stdout:
        pytest.skip("not a checkout: git does not list its files")
    tracked = {line.split("/")[0] for line in listed.stdout.decode().splitlines()}
    assert tracked == set(TOP)


def test_who_cites_the_course_cites_the_version_that_is_here():
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {refimpl.__version__}" in cited


def test_the_readme_has_the_commands_that_ci_runs():
    installed = "-m pip install --no-compile -r requirements"
    assert f"{installed}.txt" in front_door.command(front_door.OPEN)
    assert f"{installed}-dev.txt" in front_door.command(front_door.TEST)
    chapters = f"`{front_door.TEST} {front_door.CHAPTERS}`"
    assert chapters in (ROOT / "README.md").read_text(encoding="utf-8")


PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted(ROOT.glob("notebooks/guide/*.md"))
PAGES += sorted(ROOT.glob("notebooks/*.ipynb"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_modules_that_a_page_asks_to_run_are_there(page):
    ours = r"python -m ((?:refimpl|course|experiments|web|tests)[\w.]*)"
    asked = set(re.findall(ours, page.read_text(encoding="utf-8")))
    assert [name for name in asked if importlib.util.find_spec(name) is None] == []


def test_the_tests_of_another_package_are_not_taken_for_ours(tmp_path):
    """Some install theirs, as verl 0.9.1 does."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/__init__.py").touch()
    asked = "import importlib.util as u; assert u.find_spec('tests.tools.pages')"
    theirs = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", asked], cwd=ROOT, env=theirs, check=True)


@pytest.mark.parametrize("page", tables.MADE)
def test_the_guides_tables_are_the_registrys_and_the_measured_figures(page):
    _, text, now = tables.written(page)
    assert now == text, "run `python -m tests.tools.tables`"


def test_the_strips_say_how_the_stored_runs_ended():
    assert tables.ENDED.read_text(encoding="utf-8") == tables.ended()


def test_the_readme_leads_to_every_page_of_the_guide():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    guide = [str(page.relative_to(ROOT)) for page in ROOT.glob("notebooks/guide/*")]
    assert [page for page in guide if f"]({page})" not in readme] == []
