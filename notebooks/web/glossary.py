"""Explain words and symbols where they are used, from the page of notation."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from web.markdown import in_prose
from web.page import Page, SiteError, text_of

TERMS = re.compile(r'<tr>\s*<td id="([^"]+)">(.*?)</td>\s*<td>(.*?)</td>', re.S)
"""Anchor, term and meaning, in the page of notation."""
SYMBOLS = re.compile(r"<tr>\s*<td>(.*?)</td>\s*<td>(.*?)</td>", re.S)
MARKED = tomllib.loads(
    (Path(__file__).parent / "glossary.toml").read_text(encoding="utf-8")
)
"""Phrases of each chapter in which a term is explained, with the term in brackets."""
OTHERWISE = MARKED.pop("otherwise")
"""Symbols with another meaning in a chapter, where they are not explained."""


def addresses(pages: Mapping[str, Page]) -> dict[str, str]:
    """Map each term to its address, from the rows of the page of notation."""
    rows = TERMS.findall(pages["notation.html"].body)
    return {term_of(cell): f"notation.html#{anchor}" for anchor, cell, _ in rows}


def explained(page: Page, terms: Mapping[str, str]) -> Page:
    """Link the terms that `MARKED` has for a chapter, from its first heading on.

    Raises `SiteError` for a phrase that the chapter does not have.
    """
    at = page.body.find("<h2")  # no explanation disturbs the opening
    opening, body, missing = page.body[:at], page.body[at:], []
    for phrase in MARKED.get(Path(page.file).stem, ()):
        before, term, after = re.split(r"[][]", phrase)
        if term not in terms:
            raise SiteError(f"glossary.toml: the glossary has no term {term!r}")
        found = linked(body, before, term, after, terms[term])
        if found == body:
            missing.append(phrase)
        body = found
    if missing:
        raise SiteError(
            f"{Path(page.file).stem}.ipynb no longer says {', '.join(missing)}: mark "
            "these terms elsewhere in web/glossary.toml, or not at all"
        )
    return replace(page, body=opening + body)


def linked(body: str, before: str, term: str, after: str, address: str) -> str:
    """Link a term to its address where prose has it first between these words."""
    parts = (
        r"\s+".join(map(re.escape, re.split(r"\s+", x))) for x in (before, term, after)
    )
    pattern = re.compile(r"(?<![\w-])({})({})({})(?![\w-])".format(*parts))
    link, left = rf'\1<a class="term" href="{address}">\2</a>\3', 1

    def first(text: str) -> str:
        nonlocal left
        text, count = pattern.subn(link, text, left) if left else (text, 0)
        left -= count
        return text

    return in_prose(body, first)


def term_of(cell: str) -> str:
    """Return the words of a glossary's first cell, without symbols and second names."""
    words = re.sub(r"<math.*?</math>|\(.*?\)", "", cell, flags=re.S)
    return text_of(words).split(",")[0].strip()


def script(page: Page) -> bytes:
    """Write the page of notation as data: terms by anchor, symbols by their letters."""
    terms = {
        anchor: [term, meaning] for anchor, term, meaning in TERMS.findall(page.body)
    }
    table = page.body.partition('<h2 id="glossary">')[0]
    symbols = dict[str, list[str]]()
    for symbol, meaning in SYMBOLS.findall(table):  # w is explained before w g r Â
        symbols.setdefault(letters(symbol), [symbol, meaning])
    known = {"terms": terms, "symbols": symbols, "otherwise": OTHERWISE}
    data = json.dumps(known, ensure_ascii=False)
    return f"courseGlossary({data});".encode()


def letters(cell: str) -> str:
    """Return a symbol as formulas have it: a letter, π with its index, or Â as A^."""
    text = text_of(cell)
    return text if text.startswith("π") or text == "A^" else text[:1]
