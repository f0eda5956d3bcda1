"""Read answers from text: in boxes and tags, as words, numbers and formulas.

    <think>…</think> so \\boxed{1\\,000}     marked: 1\\,000      numbers: 1000
    The answer is 2k+2.                    tail: 2k+2
    1 ½                                    formula: $1 \\frac{1}{2}$

These functions only handle text and evaluate nothing. Because a model writes the text,
each of them takes time proportional to its length.
"""

import re
import unicodedata

NUMBER = re.compile(
    r"(?:(?<![\w.])[-+])?(?<![\w.^])(?<!\^\{)"  # not inside a word, and no exponent
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:[eE][-+]?\d+|\^\{?[-+]?\d+\}?)?",
    re.ASCII,
)
_QUOTIENT = re.compile(
    rf"{NUMBER.pattern}(?:\s*/\s*{NUMBER.pattern})?(?:\s?\\?%)?", re.ASCII
)
_DASHES = str.maketrans("\N{MINUS SIGN}\N{EN DASH}", "--")
_GROUPED = re.compile(  # a thin space, LaTeX's spaces, {,}, ' or _ between thousands
    "(?<=[0-9])(?:[\N{NO-BREAK SPACE}\N{THIN SPACE}\N{NARROW NO-BREAK SPACE}]"
    r"|\\[,;! ] ?|\{,\}|'|_)(?=[0-9]{3}(?![0-9]))"
)
_SPACED = re.compile(r"(?<![\d.,])(?<!\d )\d{1,3}(?: \d{3})+(?![\d,]| \d)", re.ASCII)
_LEADS_IN = re.compile(r"(?:\bis|\bare|\bequals|:)(?=[\s*])|(?<![<>!=])=(?!=)")
_STOPS = " \t\"'`*.,;:!?$"
_BRACKETS = "()[]{}<>"
_COSTUME = re.compile(r"\\(?:text(?:bf|it)?|math(?:rm|bf))(?=\{)|\\(?:left|right)\b")
_WORDS = re.compile(r"[^\W\d_]+(?:[ '-][^\W\d_]+)*\.?")
_NAMES = (
    "sqrt|pi|infinity|infty|arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|log|ln|exp|"
    "alpha|beta|gamma|delta|theta|lambda|phi|omega|mu|sigma"
)
_NAME = re.compile(rf"(?<![A-Za-z\\])(?:{_NAMES})(?![A-Za-z])")
_SIGNS = {
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∗": "*", "÷": "/", "⁄": "/",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∞": r"\infty ", "π": r"\pi ",
    "√": r"\sqrt ", "°": r"^\circ ", "∪": r"\cup ", "∅": r"\emptyset ", "±": r"\pm ",
    "∈": r"\in ", "²": "^2", "³": "^3",
    r"\$": "", "**": "^",
}  # fmt: skip
_REWRITTEN = (
    (re.compile(r"(?<=\d)[eE]([-+]?\d+)"), r"\\cdot10^{\1}"),
    (re.compile(r"(?<![\d./])(\d+) (\d+)/(\d+)(?![\d./])"), r"\1\\frac{\2}{\3}"),
    (re.compile(r"\\sqrt ?\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\^(-?\d*\.\d+|-?\d\d+|-\d)"), r"^{\1}"),  # 2^10 is not 2¹0
    (re.compile(r"(?<=\d)\s?(?<!\\)%"), r"\\%"),
)
_UNIT = re.compile(r"\\(?:text|mbox|mathrm)\{[^{}]*\}")
_SYMBOL = "(?:[kcmdµ]?(?:m|g|s|l|L|J|W|N|Pa|mol)|h|hr|min|ft|in|mi|yd|lb)"
_POWER = r"(?:[²³]|\^\{?-?[1-4]\}?)"
_MEASURE = re.compile(  # 60 km/h, 10 m/s², 5 cm^2; 5m^2 may be a formula
    rf"(?<=\d)(?: ?{_SYMBOL}[/·]{_SYMBOL}{_POWER}?| {_SYMBOL}{_POWER})(?=[ .*]*$)"
)
_CLAUSE = re.compile(
    r"[.,;:!?](?=\s)|\b(?:but|so|thus|hence|therefore|and(?=\s+not\b))\b", re.I
)
_JOINS = re.compile(r"\b(?:and|but)\s*$", re.I)
_DENIES = re.compile(r"(?<!\\)\b(?:not|never|neither|nor|cannot)\b|n['’]t\b", re.I)
_OR = re.compile(r"[\s$*]*or[\s$*]+[-\d]")
CHOICE = re.compile(r"^\(?([A-Za-z])[.:)]\s(?!.*\b[A-Za-z][.:)]).*")
"""One choice with its text, such as `B) 42`, but not a list of choices."""
_VERDICTS = {"yes", "no", "true", "false"}
_NUMBERS = re.compile(r"[-+\d\s,.:;()\[\]]*\d[-+\d\s,.:;()\[\]]*", re.ASCII)
_OPERATOR = re.compile(r"[-+*/^_=<>!\\]|\d[A-Za-z(]|[A-Za-z)]\d")


def marked(text: str) -> tuple[str, bool]:
    """Return the content of the last tag and of the last box in it, if there are any.

    The second result is True if there is a tag or a box. Text before `</think>`, or
    after a `<think>` that is never closed, does not belong to the answer. An empty tag
    does not count; an empty box, or one that is never closed, is an empty answer.
    """
    inside = in_tag(text)
    spoken = inside or _spoken(text)
    boxed = in_box(spoken)
    if boxed is not None:
        return boxed, True
    return spoken.strip(), bool(inside)


def _spoken(text: str) -> str:
    """The text without the model's thinking."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def in_tag(text: str) -> str:
    """The content of the last non-empty `<answer>…</answer>`, or an empty string.

    The opening tag may be missing, because some prompts end with it.
    """
    *closed, _ = re.split("</answer>", _spoken(text), flags=re.IGNORECASE)
    for n, before in reversed([*enumerate(closed)]):
        _, *opened = re.split("<answer>", before, flags=re.IGNORECASE)
        inside = opened[-1] if opened else "" if n else before
        if inside.strip():
            return inside.strip()
    return ""


def in_box(text: str) -> str | None:
    r"""The content of the last `\boxed{…}`; None if there is none."""
    _, box, rest = text.rpartition(r"\boxed")
    if not box:
        return None
    if not rest.lstrip().startswith("{"):
        return re.match(r"\s*([^\s$]*)", rest)[1]  # type: ignore[index]
    depth = 0
    for end, sign in enumerate(rest := rest.lstrip()):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if depth == 0:
            return rest[1:end].strip()
    return ""


def is_number(text: str) -> bool:
    """True if the text is one number and nothing else."""
    return NUMBER.fullmatch(text) is not None


def is_date(text: str) -> bool:
    """True if the text looks like a date, such as 2024-01-31 or 31/1/2024."""
    year_first, year_last = r"\d{4}([-/])\d\d?\1\d\d?", r"\d\d?([-/])\d\d?\2\d{4}"
    return bool(re.fullmatch(f"{year_first}|{year_last}", text))


def numbers(text: str, like: str = "") -> list[str]:
    """All numbers in `text`, with their signs, in the form of the number `like`.

    A sign may be a hyphen, a minus (U+2212) or an en dash. Thousands may be separated
    by a comma, a thin space, LaTeX's `\\,` or `{,}`, or `_`. A plain space separates
    thousands only if `like` has more than three digits before its point, because
    100 200 may be two numbers. Commas and plus signs are removed, unless `like` is
    empty or has one.
    """
    matches = NUMBER.findall(joined(text, like))
    if like and "," not in like:
        matches = [number.replace(",", "") for number in matches]
    if like and not like.startswith("+"):
        matches = [number.removeprefix("+") for number in matches]
    return matches


def joined(text: str, like: str = "") -> str:
    """Remove thousands separators (see `numbers`) and replace all dashes by hyphens."""
    text = _GROUPED.sub("", text.translate(_DASHES))
    if len(re.sub(r"\D", "", like.split(".")[0])) > 3:
        text = _SPACED.sub(lambda number: number[0].replace(" ", ""), text)
    return text


def tail(text: str, like: str) -> str:
    """The end of a line in the form of `like`: the text after the last `is`, `:` or
    `=` that is not part of `like`, without the final stop."""
    line = text.strip()
    for lead in reversed([*_LEADS_IN.finditer(line)]):
        if lead[0] not in like:
            line = line[lead.end() :]
            break
    return bare(line, like, _STOPS)


def says(text: str, like: str) -> bool:
    """True if the last line, or its rest after an `is`, `:` or `=`, equals `like`."""
    line = last_lines(text, like)
    begins = [0, *(lead.end() for lead in _LEADS_IN.finditer(line))]
    return like in (bare(line[begin:], like, _STOPS) for begin in begins)


def affirmed(text: str, like: str) -> str:
    """Remove a last clause that says what the answer is not: `It is 5, not 6.`"""
    line = last_lines(text, like).strip(_STOPS)
    denies = _DENIES.search(_CLAUSE.split(tail(line, like))[-1])
    if not denies or _DENIES.search(like):
        return text
    before, clause, _ = text.rpartition(_CLAUSE.split(line)[-1])
    return _JOINS.sub("", before) if clause else text  # a fence may be in between


def quantity(text: str) -> str:
    """The number, or the quotient of two numbers, that a text ends with.

    In the last line with a number this is the first one after the last `is`, `:` or
    `=`, else the last one of the line. The result is empty for alternatives, `7 or 8`.
    """
    for line in reversed(text.splitlines()):
        if numbers := list(_QUOTIENT.finditer(line)):
            last = numbers[-1]
            leads = [lead.end() for lead in _LEADS_IN.finditer(line, 0, last.start())]
            begins = leads[-1] if leads else last.start()
            number = next(match for match in numbers if match.start() >= begins)
            either = line[: number.start()].rstrip(_STOPS).endswith(" or")
            return "" if either or _OR.match(line, number.end()) else number[0]
    return ""


def bare(text: str, like: str, around: str = _STOPS + _BRACKETS) -> str:
    """Strip the characters `around` a text, except those that `like` begins or ends
    with."""
    own = {like[:1], like[-1:]}
    inner = text.strip("".join(sign for sign in around if sign not in own))
    point = inner[:1].isdigit() and re.match(rf"[^.]*\.{re.escape(inner)}", text)
    return f".{inner}" if point else inner  # .5 is not 5


def last_lines(text: str, like: str) -> str:
    """The last lines of a text, as many as `like` has, without Markdown's fences."""
    lines = [line for line in text.splitlines() if not line.strip().startswith("```")]
    return "\n".join(lines[-len(like.splitlines()) :])


def words(text: str) -> str | None:
    r"""The words of a text such as `\text{Monday}`, `(C)` or `True`, in lower case.

    Returns None if the text may be a formula, such as `xy` or `tan x`.
    """
    plain = re.sub(r"\s+", " ", _COSTUME.sub("", text).strip(_STOPS + _BRACKETS))
    runs = re.findall(r"[^\W\d_]+", plain)
    letters = _WORDS.fullmatch(plain) and "".join(runs).isalpha()  # ½ is none
    formula = not letters or _NAME.search(plain) or re.fullmatch("[Α-ω]", plain)
    short = len(plain) == 1 or plain.casefold() == "no"
    long = short or any(len(run) > 2 for run in runs)
    return plain.casefold() if long and not formula else None


def last_words(text: str, like: str) -> str:
    """The last words of a text, as many as `like` has.

    The result is empty if they are one of two alternatives (`A or B`), or the article
    at the end of a truncated text.
    """
    parts, n = text.split(), len(like.split())
    last, before = " ".join(parts[-n:]), " ".join(parts[-n - 1 : -n]).casefold()
    listed = before[1:] == "," and len(like) == 1  # A, B
    return "" if last == "a" or listed or before in ("or", "and", "&") else last


def opens(text: str, like: str) -> bool:
    """True if it begins with the verdict `like` (`Yes, it is.`) and has no other."""
    first, *others = re.findall(r"\w+|[,.!]", text.casefold()) or [""]
    verdict = first == like in _VERDICTS and others[:1] in ([","], ["."], ["!"])
    return verdict and not (_VERDICTS - {like}) & {*others}


def without_money(text: str) -> str:
    r"""Remove dollar signs that mean money: `\$`, and `$` if every one of them stands
    before a number. (In a pair of LaTeX's the second one stands after its formula.)"""
    text = text.replace(r"\$", "")
    money = len(re.findall(r"\$(?=\s?-?[\d.])", text)) == text.count("$")
    return text.replace("$", "") if money or text.count("$") % 2 else text


def latex(text: str) -> str:
    r"""Rewrite a typed formula as LaTeX: `√2`, `½`, `1e3`, `2pi`, `1 1/2`, `2**10`.

    LaTeX stays as it is.
    """
    text = joined(text)
    for sign, command in _SIGNS.items():
        text = text.replace(sign, command)
    text = "".join(map(_fraction, text))
    text = _NAME.sub(lambda name: "\\" + name[0], text)
    text = text.replace(r"\infinity", r"\infty")
    for pattern, rewritten in _REWRITTEN:
        text = pattern.sub(rewritten, text)
    return text.strip()


def without_unit(text: str) -> str:
    """Remove a unit after a number if it looks like a formula, such as km/h."""
    return _MEASURE.sub("", text)


def formula(text: str) -> str:
    """The text as LaTeX between two `$`, as math-verify expects it."""
    return f"${latex(text).replace('$', '')}$"


def _fraction(sign: str) -> str:
    """Rewrite a character such as ½ as LaTeX; other characters stay as they are."""
    over, slash, under = unicodedata.normalize("NFKC", sign).partition("⁄")
    return rf"\frac{{{over}}}{{{under}}}" if slash and under else sign


def is_formula(text: str) -> bool:
    """True if all of the text may be a formula: numbers, or an operator and no word."""
    text = _UNIT.sub("", latex(text))
    if _NUMBERS.fullmatch(text):
        return True
    rest = re.sub(r"\\(?:begin|end)\{[a-z]+\}|\\[A-Za-z]+", "", text)
    formula = _OPERATOR.search(text) and re.search(r"\w", text)  # --- is none
    return bool(formula) and not re.search(r"[^\W\d_]{3}", rest)
