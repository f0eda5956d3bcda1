"""Every paper that the code, the chapters or the guide cite by its arXiv id."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from markupsafe import Markup

from course.kit import methods
from web.page import NOTEBOOKS, ROOT, Page, made, prose

ID = re.compile(r"(?<![\d.])\d{4}\.\d{5}(?!\d)")
UNKNOWN = ("", "title not verified")
"""Author and title of a paper that nobody has looked up yet."""


def page(group: str) -> Page:
    return made(
        "bibliography",
        "Bibliography",
        group,
        f"{len(cited())} papers, with the chapters that cite each.",
        cited=[
            (id_, methods.KNOWN.papers.get(id_, UNKNOWN), dict.fromkeys(map(place, by)))
            for id_, by in sorted(cited().items())
        ],
    )


def place(path: Path) -> Markup:
    """Link to the chapter or guide page that a file belongs to, or show its path."""
    stems = [notebook.stem for notebook in sorted(NOTEBOOKS.glob("*.ipynb"))]
    folders = {stem.partition("_")[2]: stem for stem in stems}
    home = path.stem if path.stem in stems else folders.get(path.parent.name)
    if home := home or methods.of(path.stem).chapter:
        number = home.partition("_")[0]
        return Markup(f'<a href="{home}.html">chapter {number}</a>')
    if path.suffix == ".md":
        return Markup(f'<a href="{path.stem}.html">{path.stem}</a>')
    return Markup(f"<code>{path.relative_to(ROOT).as_posix()}</code>")


@cache
def cited() -> dict[str, list[Path]]:
    """Return the files that cite each arXiv id, chapters first."""
    found: dict[str, list[Path]] = {}
    for path in sources():
        chapter = path.suffix == ".ipynb"
        text = prose(path.stem) if chapter else path.read_text(encoding="utf-8")
        for paper in sorted(set(ID.findall(text))):
            found.setdefault(paper, []).append(path)
    return found


def sources() -> Iterator[Path]:
    yield from sorted(NOTEBOOKS.glob("*.ipynb"))
    yield from sorted((NOTEBOOKS / "guide").glob("*.md"))
    for code in ("refimpl", "notebooks/experiments"):
        yield from sorted((ROOT / code).rglob("*.py"))
    yield from sorted((NOTEBOOKS / "course").rglob("*.py"))
