"""Mathematics without a script: MathML, and the font that it is set in.

Every current browser sets MathML itself, and a screen reader reads it. This module
corrects what latex2mathml gets wrong: the space next to `log` and `clip`, bars used as
brackets, escaped braces.
"""

import html
import io
import itertools
import re
import unicodedata
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import ziamath
from fontTools import subset
from latex2mathml.converter import convert

FONT = Path(ziamath.__file__).parent / "fonts" / "STIXTwoMath-Regular.ttf"
WORD = r"<m[io]>([A-Za-z]{2,})</m[io]>"
OPENS = r"(?=<mo[^>]*>(?:&#x00028;|\(|\[|&#x0007C;))"
MENDED = {
    r"<mo([^>]*)>\\([{}])</mo>": r"<mo\1>\2</mo>",
    r"<mo([^>]*)>\\\|</mo>": r"<mo\1>‖</mo>",
    r'<mo stretchy="false">&#x0007C;</mo>': "<mo>&#x0007C;</mo>",
    r"<mo>(&#x0007C;|&#x02016;)</mo>": r'<mo stretchy="false" lspace="0" rspace="0">'
    r"\1</mo>",
    r'<mo( minsize="[^"]+" maxsize="[^"]+")>([|‖])</mo>': r'<mo stretchy="true" '
    r'lspace="0" rspace="0"\1>\2</mo>',
    r"<mi>&#x0007E;</mi>": "<mo>&#x0223C;</mo>",
    r'"negativethinmathspace"': '"-0.167em"',
    WORD + OPENS: r'<mo lspace="0.167em" rspace="0">\1</mo>',
    WORD: r'<mo lspace="0.167em" rspace="0.167em">\1</mo>',
}


def mathml(formula: str, display: str = "inline") -> str:
    """Convert a formula to MathML, "inline" or as a "block".

    Raises `ValueError` for an invalid formula.
    """
    try:
        read = re.sub(r"\\\\\[[\d.]+\w+\]", r"\\\\", formula)  # a space below a row
        read = re.sub(r"(\\math[a-z]+) (\w)", r"\1{\2}", read)  # \mathbb E is a plain E
        read = read.replace("{aligned}", "{align*}")  # the name that latex2mathml knows
        markup = convert(read, display=display)
    except Exception as error:  # latex2mathml raises many kinds
        raise ValueError(f"invalid formula: ${formula}$ ({error!r})") from error
    for pattern, mended in MENDED.items():
        markup = re.sub(pattern, mended, markup)
    if unknown := re.search(r">(\\[A-Za-z]+)<", markup):
        raise ValueError(f"invalid formula: ${formula}$ (what is {unknown[1]}?)")
    markup = markup.replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "")
    whole = ElementTree.fromstring(markup)
    for cell in whole.iter("mtd"):  # one row, whose spaces CSS leaves alone
        row = Element("mrow")
        row.extend(cell)
        cell[:] = [row]
    for bar in whole.iter("mover"):
        if bar[1].text in "¯―":  # which no font stretches over log π
            bar.remove(bar[1])
            bar.tag = "mrow"
            bar.set("class", "bar")
    for row in [*whole.iter()]:
        mend_signs(row)
        mend_powers(row)
    return in_parts(ElementTree.tostring(whole, "unicode"))


def mend_signs(row: Element) -> None:
    """Mark a sign behind a relation or a bracket, as in = −1, as one number's own."""
    for before, sign in itertools.pairwise(row):
        behind = before.tag == "mo" and before.text not in (*CLOSING, "|", "‖", "!")
        if behind and sign.tag == "mo" and sign.text in ("−", "+"):
            sign.set("form", "prefix")


def mend_powers(row: Element) -> None:
    """Raise a whole bracket, where latex2mathml raises the closing one alone."""
    for power in row.findall("msup") + row.findall("msubsup"):
        if power[0].tag != "mo" or power[0].text not in CLOSING:
            continue
        children, depth = [*row], 1
        start = at = children.index(power)
        while depth and start:
            start -= 1
            text = children[start].text if children[start].tag == "mo" else ""
            depth += (text in CLOSING) - (text in OPENING)
        if depth == 0:
            base = Element("mrow")
            base.extend([*children[start:at], power[0]])
            for child in children[start:at]:
                row.remove(child)
            power[0] = base


ON_A_LINE = {
    "msub": "{}_{}",
    "msup": "{}^{}",
    "msubsup": "{}_{}^{}",
    "mfrac": "{}/{}",
    "msqrt": "√{}",
}
BRACKETS = {"mfrac": 0, "msqrt": 0, "msup": 1, "msubsup": 2}
"""The first of an element's parts that needs brackets on a line."""


def on_a_line(markup: str) -> str:
    """Write a formula as plain text: o_i, p^G, (G−1)/G."""

    def words(node: Element) -> str:
        inner = [words(child) for child in node]
        if node.tag == "mover" and inner[1] in "^ˆ":
            return unicodedata.normalize("NFC", f"{inner[0]}\u0302")
        if node.get("class") == "bar":
            return unicodedata.normalize("NFC", f"{''.join(inner)}\u0304")
        for i in range(BRACKETS.get(node.tag, len(inner)), len(inner)):
            if re.search(r"\w\W", inner[i]):
                inner[i] = f"({inner[i]})"
        whole = ON_A_LINE.get(node.tag, "{}" * len(inner)).format(*inner)
        return (node.text or "").strip() + whole

    return html.escape(words(ElementTree.fromstring(markup)))


COMPARES = re.compile("[=≈∝≤≥<>→⟺⇒⇔∈]")
OPENING, CLOSING = tuple("([{"), tuple(")]}")
LONG = 24
"""A line of prose may break a formula with more letters, as TeX does."""


def in_parts(markup: str) -> str:
    """Split a displayed or long formula into parts that begin with a relation.

    If there is room they form one row, as if unbroken; on a phone they continue on the
    next. No part ends inside brackets.
    """
    whole = ElementTree.fromstring(markup)
    (row,), displayed = whole, whole.get("display") == "block"
    if not displayed and len("".join(whole.itertext())) <= LONG:
        return markup
    parts, brackets, apart = [""], 0, False
    for child in row:
        operator = child[0] if re.match("msu[bp]", child.tag) else child
        sign = (operator.text or "") if operator.tag == "mo" else ""
        brackets += (sign in OPENING) - (sign in CLOSING)
        wide = child.get("width") in ("1em", "2em")
        # Behind a wide space both sides of the first relation stay together.
        begins = wide or (COMPARES.fullmatch(sign) and not apart)
        apart = wide or (apart and not COMPARES.fullmatch(sign))
        if parts[-1] and not brackets and begins:
            parts.append("")
            if not wide:  # at the beginning of a row it would get a unary sign's space
                operator.set("form", "infix")
        parts[-1] += ElementTree.tostring(child, "unicode")
    opening = markup.partition(">")[0]
    return "<wbr>".join(f"{opening}><mrow>{part}</mrow></math>" for part in parts)


DRAWN = {"ℎ", "√", *map(chr, (*range(0x1D434, 0x1D468), *range(0x1D6E2, 0x1D71C)))}
"""Signs that a browser adds by itself: roots, and one-letter names in italics."""


def font(formulas: str) -> bytes:
    """Make a WOFF font of MathML's signs, and of what stretches a bracket or root."""
    options = subset.Options(flavor="woff", layout_features=["*"], notdef_outline=True)
    loaded = subset.load_font(str(FONT), options)
    chosen = subset.Subsetter(options)
    chosen.populate(text="".join(DRAWN) + html.unescape(formulas))
    chosen.subset(loaded)
    written = io.BytesIO()
    subset.save_font(loaded, written, options)
    return written.getvalue()
