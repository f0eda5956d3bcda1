"""Explain words and symbols where they are used, from the page of notation."""

import json
import re
from collections.abc import Mapping

from web.page import Page, text_of

TERMS = re.compile(r'<tr>\s*<td id="([^"]+)">(.*?)</td>\s*<td>(.*?)</td>', re.S)
"""Anchor, term and meaning, in the page of notation."""
SYMBOLS = re.compile(r"<tr>\s*<td>(.*?)</td>\s*<td>(.*?)</td>", re.S)
ORDINARY = ("K", "default", "group", "update")
"""Terms that are also everyday words or letters, so their first use is not linked."""


def addresses(pages: Mapping[str, Page]) -> dict[str, str]:
    """Map each term to its address, from the rows of the page of notation."""
    rows = TERMS.findall(pages["notation.html"].body)
    terms = {term_of(cell): f"notation.html#{anchor}" for anchor, cell, _ in rows}
    return {term: terms[term] for term in terms if term and term not in ORDINARY}


def term_of(cell: str) -> str:
    """Return the words of a glossary's first cell, without symbols and second names."""
    words = re.sub(r"<math.*?</math>|\(.*?\)", "", cell, flags=re.S)
    return text_of(words).split(",")[0]


def script(page: Page) -> bytes:
    """Write the page of notation as data: terms by anchor, symbols by their letters."""
    terms = {
        anchor: [term, meaning] for anchor, term, meaning in TERMS.findall(page.body)
    }
    table = page.body.partition('<h2 id="glossary">')[0]
    symbols = {letters(cell): [cell, said] for cell, said in SYMBOLS.findall(table)}
    told = json.dumps({"terms": terms, "symbols": symbols}, ensure_ascii=False)
    return f"courseGlossary({told});".encode()


def letters(cell: str) -> str:
    """Return a symbol as formulas have it: a letter, π with its index, or Â as A^."""
    text = text_of(cell)
    return text if text.startswith("π") or text == "A^" else text[:1]
