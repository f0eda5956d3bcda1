"""What is read is spelled right, and links between Markdown files lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from web.page import slug

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not re.match(r"\.|site/|build/|runs/", path.relative_to(ROOT).as_posix())
)


def chapters(folder: Path) -> None:
    """The prose of the notebooks, a file for each."""
    for path in ROOT.glob("notebooks/*.ipynb"):
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
