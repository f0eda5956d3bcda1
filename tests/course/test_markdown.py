"""What is read is spelled right, leads somewhere and says what is so: links, modules
that a page asks to run, the README's table, the guide's tables."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

import refimpl
from tests.tools import tables
from web import instructor
from web.page import slug

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not re.match(r"\.|site/|build/|runs/", path.relative_to(ROOT).as_posix())
)


CHAPTERS = sorted(ROOT.glob("notebooks/*.ipynb"))


def chapters(folder: Path) -> None:
    """The prose of the notebooks, a file for each."""
    for path in CHAPTERS:
        cells = nbformat.read(path, as_version=4).cells
        prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
        (folder / f"{path.stem}.md").write_text("\n\n".join(prose), encoding="utf-8")


def test_nothing_is_misspelled(tmp_path):
    """`codespell` knows the usual slips; pyproject.toml names what it takes for one."""
    pytest.importorskip("codespell_lib")
    chapters(tmp_path)
    code = [ROOT / "refimpl", ROOT / "tests", ROOT / "notebooks/course"]
    code += [ROOT / "notebooks/web", ROOT / "notebooks/experiments"]
    command = [sys.executable, "-m", "codespell_lib", *PAGES, *code, tmp_path]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (run.stdout, run.returncode) == ("", 0), run.stderr


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.M)
    return {slug(re.sub(r"[`*]", "", heading)) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_and_heading_it_links_to_is_there(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for path, anchor in re.findall(r"\]\(([^)#: ]*)#?([^): ]*)\)", text):
        target = (page.parent / path) if path else page
        assert target.exists(), path
        if anchor and target.suffix == ".md":
            assert slug(anchor) in anchors(target), f"{path}#{anchor}"


def test_who_cites_the_course_cites_the_version_that_is_here():
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {refimpl.__version__}" in cited


TODAY = [page for page in (*PAGES, *CHAPTERS) if page.stem != "CHANGELOG"]


@pytest.mark.parametrize("page", TODAY, ids=lambda page: page.name)
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
    assert sorted(name for name, _ in rows) == [path.stem for path in CHAPTERS]
    told = [instructor.told(page) for page in pages[1:11]]  # the core path
    short, long = sum(x.minutes for x in told), sum(x.projects for x in told)
    assert [round(minutes / 60) for minutes in (short, short + long)] == [12, 22]
    said = "about twelve hours with the exercises, or twenty-two with the projects"
    for place in (
        "README.md",
        "notebooks/tour.ipynb",
        "notebooks/web/assets/index.html.j2",
    ):
        assert said in (ROOT / place).read_text(encoding="utf-8"), place


@pytest.mark.parametrize("page", tables.MADE)
def test_the_guides_tables_are_the_registrys_and_the_measured_figures(page):
    _, text, now = tables.written(page)
    assert now == text, "run `python -m tests.tools.tables`"
