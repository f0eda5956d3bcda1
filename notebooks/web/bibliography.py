"""Every paper that the code, the chapters or the guide cite by its arXiv id."""

import html
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nbformat

from course.kit import methods
from web.page import NOTEBOOKS, ROOT, Page

ID = re.compile(r"(?<![\d.])\d{4}\.\d{5}(?!\d)")
LEAD = """<h1 id="top">Bibliography</h1>
<p>Every paper with an arXiv id that the chapters, the guide or the code cite, and where
they do. The year is that of the first version. Williams' REINFORCE of 1992 has no
arXiv id: <cite>Simple Statistical Gradient-Following Algorithms for Connectionist
Reinforcement Learning</cite>, Machine Learning 8.</p>"""


def page(group: str) -> Page:
    items = "".join(item(paper, places) for paper, places in sorted(cited().items()))
    return Page(
        "bibliography.html",
        "Bibliography",
        f'{LEAD}<ul class="papers">{items}</ul>',
        group,
        summary=f"{len(cited())} papers, with the chapters that cite each.",
    )


def item(paper: str, places: list[Path]) -> str:
    """A paper as a line of the list; of a title that nobody looked up it says so."""
    author, title = methods.KNOWN.papers.get(paper, ("", "title not verified"))
    written = f"{author} " * bool(author) + f"20{paper[:2]}"
    link = f'<a href="https://arxiv.org/abs/{paper}">{paper}</a>'
    where = ", ".join(dict.fromkeys(map(place, places)))
    return (
        f'<li id="arxiv-{paper}">{html.escape(written)}, '
        f"<cite>{html.escape(title)}</cite>, {link}. Cited in {where}.</li>"
    )


def place(path: Path) -> str:
    """The chapter or page of the guide that a file belongs to, or the file's name."""
    number = re.match(r"(\d\db?)_", notebook_of(path))
    chapter = number[1] if number else methods.of(path.stem).chapter[:2]
    if chapter:
        (notebook,) = NOTEBOOKS.glob(f"{chapter}_*.ipynb")
        return f'<a href="{notebook.stem}.html">chapter {chapter}</a>'
    if path.suffix == ".md":
        return f'<a href="{path.stem}.html">{html.escape(path.stem)}</a>'
    return f"<code>{html.escape(path.relative_to(ROOT).as_posix())}</code>"


def notebook_of(path: Path) -> str:
    """The name of the notebook that it is, or in whose folder of the course it lies."""
    if path.suffix == ".ipynb":
        return path.stem
    every = (one.stem for one in sorted(NOTEBOOKS.glob("*.ipynb")))
    return next((x for x in every if x.partition("_")[2] == path.parent.name), "")


@cache
def cited() -> dict[str, list[Path]]:
    """Id → the files that name it, chapters first."""
    found: dict[str, list[Path]] = {}
    for path in sources():
        for paper in sorted(set(ID.findall(text(path)))):
            found.setdefault(paper, []).append(path)
    return found


def sources() -> Iterator[Path]:
    yield from sorted(NOTEBOOKS.glob("*.ipynb"))
    yield from sorted((NOTEBOOKS / "guide").glob("*.md"))
    for code in ("refimpl", "notebooks/experiments"):
        yield from sorted((ROOT / code).rglob("*.py"))
    yield from sorted((NOTEBOOKS / "course").rglob("*.py"))


def text(path: Path) -> str:
    """What people wrote in a file: of a notebook its cells, without pictures."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    return "\n".join(c.source for c in nbformat.read(path, as_version=4).cells)
