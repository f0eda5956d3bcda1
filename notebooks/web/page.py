"""What a page of the site is, and what is said when one cannot be made."""

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
ASSETS = Path(__file__).parent / "assets"


class SiteError(ValueError):
    """What is wrong with a page: one sentence that names the file and the cell."""


@dataclass(frozen=True)
class Page:
    """A page between the site's menu and its foot.

    `file` is its name in the site's folder, all pages lie side by side. `group` is the
    part of the menu that it stands in; a page without one is reached by links alone.
    `body` is HTML whose links and pictures are relative to `source`, a file of the
    repository; the build turns them into the site's. `source` is None where the page
    was made from code: then its links are the site's already. `files` are written
    beside the pages: by their path in the site, what they hold. `styles` are
    those of `assets` that this page alone needs.
    """

    file: str
    title: str
    body: str
    group: str = ""
    source: Path | None = None
    scripts: tuple[str, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    summary: str = ""
    styles: tuple[str, ...] = ()


def template(name: str) -> jinja2.Template:
    """One of `assets`, which escapes what it is given."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS), autoescape=True, trim_blocks=True
    )
    return environment.get_template(name)


WITHIN_A_LINE = r"</?(?:a|b|code|em|i|math|m\w+|strong|sub|sup)\b[^>]*>"


def text_of(fragment: str) -> str:
    """A piece of HTML as its words, on one line."""
    joined = re.sub(WITHIN_A_LINE, "", fragment)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", joined)).split())


def slug(text: str) -> str:
    """An anchor: the words of a heading in lower case, joined by hyphens."""
    return "-".join(re.findall(r"[\w.]+", text.lower()))


def size_of(picture: bytes) -> tuple[int, int]:
    """Pixels across and down."""
    with Image.open(io.BytesIO(picture)) as opened:
        return opened.size


def sized(width: int, across: int, down: int) -> str:
    """An image's attributes: its room, so that the page does not jump; read late."""
    return f'width="{width}" height="{round(down * width / across)}" loading="lazy"'


def enlarged(image: str) -> str:
    """A picture that leads to itself: a tap on a phone shows it as large as it is."""
    address = re.search(r'src="([^"]+)"', image)[1]
    return f'<a class="enlarge" href="{address}">{image}</a>'


def table(
    headers: list[str],
    rows: list[list[str]],
    caption: str = "",
    anchors: Sequence[str] = (),
) -> str:
    """A table that scrolls by itself on a narrow screen; every cell is HTML.

    `anchors` has one for every row, if the rows are to be linked to.
    """
    head = "".join(f'<th scope="col">{one}</th>' for one in headers)
    begins = [f'<tr id="{anchor}">' for anchor in anchors] or ["<tr>"] * len(rows)
    body = "".join(
        f'{begin}<th scope="row">{first}</th>'
        + "".join(f"<td>{one}</td>" for one in others)
        + "</tr>"
        for begin, (first, *others) in zip(begins, rows)
    )
    name = f"<caption>{caption}</caption>" if caption else ""
    parts = f"{name}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="table" tabindex="0"><table>{parts}</table></div>'
