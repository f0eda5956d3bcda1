"""Markdown as HTML: mathematics typeset, headings with anchors, code in colour."""

import re
from collections.abc import Callable
from pathlib import Path

from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import PythonLexer

from web.mathematics import mathml
from web.page import Page, SiteError, slug, text_of


class Renderer(IPythonRenderer):
    """nbconvert's renderer, with formulas as MathML and tables that scroll."""

    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        block = mathml(body.strip(), "block")
        return f'<div class="math" tabindex="0">{block}</div>'

    def heading(self, text: str, level: int, **_) -> str:
        anchor = slug(text_of(text))
        link = f'<a class="anchor" href="#{anchor}" aria-label="link to this"></a>'
        return f'<h{level} id="{anchor}">{text}{link}</h{level}>\n'

    def codespan(self, code: str) -> str:
        # A long name may break behind its parts, and breaks elsewhere only if it must.
        ends = r"(?<=\w)[_.=/](?=\w)" if len(code) > 12 else "$^"
        return re.sub(ends, r"\g<0><wbr>", super().codespan(code))

    def block_code(self, code: str, info: str | None = None) -> str:
        return super().block_code(code, info).replace("<pre>", '<pre tabindex="0">', 1)


def in_colour(code: str, lexer: Lexer | None = None) -> str:
    """Colour code: Python, unless another lexer is given."""
    shown = highlight(code, lexer or PythonLexer(), HtmlFormatter())
    return shown.replace("<pre>", '<pre tabindex="0">', 1)


def markdown(text: str) -> str:
    """Convert a cell or file to HTML. Raises `ValueError` for an invalid formula."""
    html = MarkdownWithMath(renderer=Renderer(escape=False)).render(text)
    html = re.sub(r"(<table>.*?</table>)", scrolling, html, flags=re.S)
    html = html.replace('type="checkbox" disabled', 'type="checkbox" aria-label="done"')
    # Keep the comma after a formula from beginning a line.
    html = re.sub(
        f"({MATH})((?:[.,:;!?)’”]|&quot;)+)", r'<span class="whole">\1\2</span>', html
    )
    return in_prose(html, typeset)


INDEX = re.compile(
    r"(?<![\w}])([A-Za-zα-ωΑ-ΩÂĀ])_(old|new|ref|high|low|pos|neg|max|cache|[a-zθT])(?!\w)"
)


def typeset(text: str) -> str:
    """Set π_old and s_{i,t} with an index, e^0.4 with a power, -1 with a minus; keep
    n = 5 and (0.1 to 0.2) whole."""
    text = INDEX.sub(r"\1<sub>\2</sub>", text)
    text = re.sub(r"(?<=\w)_\{([^{}]+)\}", r"<sub>\1</sub>", text)
    text = re.sub(r"\b(mean|std)_(batch|group)\b", r"\1<sub>\2</sub>", text)
    text = re.sub(r"(?<=\w)\^([−∓]?[\d.]*\d|\([^()]+\))", r"<sup>\1</sup>", text)
    text = re.sub(r"(?<![\w.-])-(?=\.?\d)", "−", text)
    text = re.sub(r"\b([A-Za-z]) = (?=[\d−+])", "\\1\u00a0=\u00a0", text)
    return re.sub(r"(\([−+]?[\d.]+%?) to (?=[−+]?\d)", "\\1\u00a0to\u00a0", text)


MATH = r"<math(?:(?!<math).)*?</math>"


MESSAGES = ("verdict", "exact pays")
"""Last columns with a table's message, which stay in view when the table scrolls."""


def scrolling(match: re.Match) -> str:
    names = [text_of(name) for name in re.findall(r"<th\b.*?</th>", match[1], re.S)]
    rows = re.split(r"(?=<tr>)", match[1])
    for place in (names.index(name) for name in MESSAGES if name in names[-1:]):
        rows[1:] = [in_sight(row, place) for row in rows[1:]]
    return f'<div class="table" tabindex="0">{"".join(rows)}</div>'


def in_sight(row: str, place: int) -> str:
    """Mark the cell at this place as the table's message."""
    before, *cells = re.split(r"(?=<t[hd]\b)", row)
    cells[place] = re.sub(r"^<t[hd]", r'\g<0> class="message"', cells[place])
    return "".join([before, *cells])


def headed(body: str, name: str) -> tuple[str, str]:
    """Return a page's title, and its first paragraph if it begins with one.

    A line in italics between them, as electives have it, is skipped.
    """
    aside = r"(?:<p><em>[^\n]*</em></p>\s*)?"
    first = r"(?:<p>(?!<img)(.*?)</p>)?"
    found = re.search(rf"<h1[^>]*>(.*?)</h1>\s*{aside}{first}", body, re.S)
    if not found:
        raise SiteError(f"{name} has no title: a line that begins with '# '")
    return text_of(found[1]), text_of(found[2] or "")


def from_markdown(path: Path, group: str) -> Page:
    """Make a page of a Markdown file; its first heading is the title."""
    try:
        body = markdown(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SiteError(f"{path.name}: {error}") from error
    title, summary = headed(body, path.name)
    return Page(f"{path.stem}.html", title, body, group, path, summary=summary)


PARTS = re.compile(r"(<[^>]+>)")
QUIET = (
    *("a", "code", "pre", "math", "h1", "h2", "h3", "summary", "script", "figure"),
    "form",
)
"""Elements whose text is left unchanged."""


def in_prose(body: str, change: Callable[[str], str]) -> str:
    """Apply `change` to every stretch of prose, and to nothing in `QUIET`."""
    inside = 0
    parts = PARTS.split(body)
    for i, part in enumerate(parts):
        if part.startswith("<"):
            name = re.match(r"</?(\w*)", part)[1].lower()
            if name in QUIET:
                inside += -1 if part.startswith("</") else 1
        elif not inside and part.strip():
            parts[i] = change(part)
    return "".join(parts)
