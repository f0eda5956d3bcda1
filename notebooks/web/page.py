"""A page of the site, and the error raised if one cannot be made."""

import html
import io
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import jinja2
import nbformat
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
ASSETS = Path(__file__).parent / "assets"
PLAYER = NOTEBOOKS / "player"
"""What moves explorers, on a page as in JupyterLab."""


class SiteError(ValueError):
    """An error in a page: one sentence that names the file and the cell."""


@dataclass(frozen=True)
class Page:
    """A page, without the site's menu and footer.

    `file` is its name in the site's folder, which holds all pages. `group` is its part
    of the menu; a page without one is reached by links alone. `body` is HTML whose
    links and pictures are relative to `source`, a file of the repository; the build
    replaces them by the site's. `source` is None for a page made from code, whose links
    are the site's already. `files` are further files of the site, contents by path.
    `left_out` says what the page lacks, a sentence for each output.
    """

    file: str
    title: str
    body: str
    group: str = ""
    source: Path | None = None
    scripts: tuple[str, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    summary: str = ""
    left_out: tuple[str, ...] = ()


TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(ASSETS),
    autoescape=lambda name: ".html." in name,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
)
"""The templates in `assets`; HTML templates escape what they are given."""
TEMPLATES.policies["json.dumps_kwargs"] = {"ensure_ascii": False}


def made(name: str, title: str, group: str = "", summary: str = "", **data) -> Page:
    """Make a page from the template of the same name and its data."""
    body = TEMPLATES.get_template(f"{name}.html.j2").render(data)
    return Page(f"{name}.html", title, body, group, summary=summary)


def notebooks() -> list[Path]:
    """The notebooks in the order of the course: the tour, then the chapters."""
    every = NOTEBOOKS.glob("*.ipynb")
    return sorted(every, key=lambda path: (path.stem != "tour", path.stem))


@cache
def prose(stem: str) -> str:
    """Join a chapter's Markdown; a heading right below </details> would become HTML."""
    cells = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4).cells
    return "\n\n".join(c.source for c in cells if c.cell_type == "markdown")


WITHIN_A_LINE = r"</?(?:a|b|code|em|i|math|m\w+|strong|sub|sup)\b[^>]*>"


def text_of(fragment: str) -> str:
    """Return the words of a piece of HTML on one line."""
    joined = re.sub(WITHIN_A_LINE, "", fragment)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", joined)).split())


def slug(text: str) -> str:
    """Make an anchor: the words of a heading in lower case, joined by hyphens."""
    return "-".join(re.findall(r"\w+(?:\.\w+)*", text.lower()))


def size_of(picture: bytes) -> tuple[int, int]:
    """Return a picture's width and height in pixels."""
    with Image.open(io.BytesIO(picture)) as opened:
        return opened.size


def sized(width: int, across: int, down: int) -> str:
    """Make an image's attributes: its size, so that the page does not jump; lazy."""
    return f'width="{width}" height="{round(down * width / across)}" loading="lazy"'


def enlarged(image: str) -> str:
    """Make a picture link to itself, so that a tap on a phone shows it at full size."""
    address = re.search(r'src="([^"]+)"', image)[1]
    return f'<a class="enlarge" href="{address}">{image}</a>'
