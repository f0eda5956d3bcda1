"""Mathematics without a script: MathML, and the font in which it stands.

Every browser of today sets MathML itself, and a screen reader reads it. What
latex2mathml leaves to the eye of a reader is put right here: the space beside `log` and
`clip`, a bar that is a bracket, a brace that was escaped.
"""

import html
import io
import re
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

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
    """A formula as MathML, "inline" or as a "block".

    Raises `ValueError` for what is no formula.
    """
    try:
        read = re.sub(r"\\\\\[[\d.]+\w+\]", r"\\\\", formula)  # a space below a row
        read = re.sub(r"(\\math[a-z]+) (\w)", r"\1{\2}", read)  # \mathbb E is a plain E
        read = read.replace("{aligned}", "{align*}")  # the name that latex2mathml knows
        found = convert(read, display=display)
    except Exception as error:  # latex2mathml has no class of its own for them
        raise ValueError(f"no formula: ${formula}$ ({error!r})") from error
    for pattern, mended in MENDED.items():
        found = re.sub(pattern, mended, found)
    if unknown := re.search(r">(\\[A-Za-z]+)<", found):
        raise ValueError(f"no formula: ${formula}$ (what is {unknown[1]}?)")
    if display == "inline":
        return in_line(found.replace("&#x000A0;", " "))
    return in_rows(found)


ON_A_LINE = {
    "msub": "{}_{}",
    "msup": "{}^{}",
    "msubsup": "{}_{}^{}",
    "mfrac": "{}/{}",
    "msqrt": "√{}",
}
BRACKETS = {"mfrac": 0, "msqrt": 0, "msup": 1, "msubsup": 2}
"""From which of its parts on a formula on a line needs brackets."""


def on_a_line(found: str) -> str:
    """A formula's letters where only text can stand: o_i, p^G, (G−1)/G."""

    def said(node: ElementTree.Element) -> str:
        tag = node.tag.rpartition("}")[2]
        inner = [said(one) for one in node]
        if tag == "mover" and inner[1] in "^ˆ":
            return unicodedata.normalize("NFC", f"{inner[0]}\u0302")
        for i in range(BRACKETS.get(tag, len(inner)), len(inner)):
            if re.search(r"\w\W", inner[i]):
                inner[i] = f"({inner[i]})"
        whole = ON_A_LINE.get(tag, "{}" * len(inner)).format(*inner)
        return (node.text or "").strip() + whole

    return html.escape(said(ElementTree.fromstring(found)))


RELATION = re.compile(r"<mo>(?:=|≈|∝|&#x0003D;|&#x02248;|&#x0221D;)</mo>")
LONG = 24
"""Letters of a formula that a line of prose may break, as TeX does."""


def in_line(found: str) -> str:
    """The formula; a long one in parts that each end with a relation."""
    if len(html.unescape(re.sub(r"<[^>]+>", "", found))) <= LONG:
        return found
    opening = re.match(r"<math[^>]*>", found)[0]
    parts = re.split(r"(<[^>]+>)", found)
    depth = 0
    for i, part in enumerate(parts):
        depth += part.startswith("<m") - part.startswith("</m")
        depth -= part.endswith("/>")
        if depth == 2 and RELATION.fullmatch("".join(parts[i - 2 : i + 1])):
            parts[i] += f"</mrow></math><wbr>{opening}<mrow>"
    return "".join(parts)


COMPARES = re.compile("[=≈∝≤≥<>→⟺⇒⇔∈]")
OPENING, CLOSING = tuple("([{"), tuple(")]}")
SPACE = re.compile(r'<mspace width="[12]em" />')


def in_rows(found: str) -> str:
    """A displayed formula in parts of which each begins with a relation.

    Where there is room they stand in one row, as if it had never been broken; on a
    phone they go on in the next. No part ends within a bracket.
    """
    opening = re.match(r"<math[^>]*>", found)[0]
    inside = found.removeprefix(opening).removesuffix("</math>")
    parts, brackets = [""], 0
    for child in children(inside.removeprefix("<mrow>").removesuffix("</mrow>")):
        operator = re.match(r"(<msu[bp]\w*>)?<mo[^>]*>([^<]+)</mo>", child)
        sign = html.unescape(operator[2]) if operator else ""
        brackets += (sign in OPENING) - (sign in CLOSING)
        compares = COMPARES.fullmatch(sign)
        if parts[-1] and not brackets and (compares or SPACE.fullmatch(child)):
            parts.append("")
            child = child.replace("<mo>", '<mo form="infix">', 1)
        parts[-1] += child
    return "<wbr>".join(f"{opening}<mrow>{part}</mrow></math>" for part in parts)


def children(row: str) -> list[str]:
    """The elements that a row of MathML holds, each with all that it holds itself."""
    found, depth = [""], 0
    for tag in re.findall(r"<[^>]+>[^<]*", row):
        found[-1] += tag
        depth += -1 if tag.startswith("</") else not re.match(r"<[^>]*/>", tag)
        if not depth:
            found.append("")
    return found[:-1]


ITALIC = {"h": "ℎ"} | {
    chr(int(unicodedata.decomposition(chr(one)).split()[1], 16)): chr(one)
    for one in (*range(0x1D434, 0x1D468), *range(0x1D6E2, 0x1D71C))
    if unicodedata.category(chr(one)) != "Cn"
}
"""A letter and how a browser draws it where it is a name: 𝑥 for x, 𝜃 for θ."""


def signs(found: str) -> set[str]:
    """The signs that a browser draws for MathML, of which it writes some itself.

    A root's √ is no character of it, and a name of one letter is drawn in italics.
    """
    letters = set(html.unescape(re.sub(r"<[^>]*>", "", found)))
    names = re.findall(r"<mi>([^<]+)</mi>", html.unescape(found))
    letters |= {ITALIC[name] for name in names if name in ITALIC}
    return letters | ({"√"} if re.search(r"<m(sqrt|root)\b", found) else set())


def font(signs: set[str]) -> bytes:
    """These signs, and what stretches a bracket or a root of them, as a WOFF font."""
    options = subset.Options(flavor="woff", layout_features=["*"], notdef_outline=True)
    loaded = subset.load_font(str(FONT), options)
    chosen = subset.Subsetter(options)
    chosen.populate(text="".join(sorted(signs)))
    chosen.subset(loaded)
    written = io.BytesIO()
    subset.save_font(loaded, written, options)
    return written.getvalue()
