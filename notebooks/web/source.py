"""A file of the repository as a page, for links from chapters."""

import html
from pathlib import Path

from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound

from web.markdown import in_colour
from web.page import ROOT, Page

LARGEST = 200_000
"""The most bytes of a file that a page shows."""


def of_code(path: Path) -> Page:
    name = path.relative_to(ROOT).as_posix()
    if path.stat().st_size > LARGEST:
        shown = f"<p>The file has {path.stat().st_size / 1e6:.1f} MB.</p>"
    else:
        try:
            lexer = get_lexer_for_filename(path.name)
        except ClassNotFound:
            lexer = TextLexer()
        shown = in_colour(path.read_text(encoding="utf-8"), lexer)
    title = f'<h1 id="top"><code>{html.escape(name)}</code></h1>'
    return Page(f"code-{name.replace('/', '-')}.html", name, title + shown)
