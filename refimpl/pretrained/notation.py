"""Read a final answer from a text, as words or as a formula for math-verify.

    <think>…</think> so \\boxed{1\\,000}     final: 1\\,000      numbers: 1000
    The answer is 2k+2. I hope it helps.   parts: The answer is 2k+2.
    1 ½                                    formula: $1 \\frac{1}{2}$

These functions only handle text and evaluate nothing.
"""

import re
import unicodedata

NUMBER = re.compile(
    r"(?:(?<![\w.])[-+])?(?<![\w.^])(?<!\^\{)"  # not inside a word, and no exponent
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
    r"(?:[eE][-+]?\d+|\^\{?[-+]?\d+\}?)?",
    re.ASCII,
)
QUOTIENT = re.compile(
    rf"(?:\d+ (?=\d+/\d))?{NUMBER.pattern}(?:\s*(?:/|or|to)\s*{NUMBER.pattern})?"
    r"(?:\s?\\?%)?",
    re.ASCII,
)
_DASHES = str.maketrans("\N{MINUS SIGN}\N{EN DASH}", "--")
_GROUPED = re.compile(  # a thin space, LaTeX's spaces, {,}, ' or _ between thousands
    r"(?<=[0-9])(?:[\xa0\u2009\u202f'_]|\\[,;! ] ?|,\\! ?|\{,\})(?=[0-9]{3}(?![0-9]))"
)
_SPACED = re.compile(r"(?<![\d.,])(?<!\d )\d{1,3}(?: \d{3})+(?![\d,]| \d)", re.ASCII)
STOPS = " \t\n\"'`*.,;:!?$。，；：！？"
BRACKETS = "()[]{}<>"

# Where in a text the answer is

_JOINS_BOXES = re.compile(
    r"(?=.*(?:and|or|[,;、和或]))(?:[\s$,;、和或*\\()\[\]]|quad|and|or"
    r"|text\{\s*(?:and|or),?\s*\}|[A-Za-z]\w*\s*=)*",
    re.S,
)
_ANSWER = re.compile(
    r"\banswers?\b[^\n]{0,60}?(?:\b(?:is|are)\b|[:=])[\s*:]*|^\s*####",
    re.I | re.M,
)
_LATER = re.compile(_ANSWER.pattern + r"(?=[-(]*[\d$\\]|(?-i:[A-Z])\b)", re.I | re.M)
_SENTENCE = re.compile(r"(?<=[.!?])(?<!\d!)\s+|\n+")
LEAD = re.compile(
    r"(?:\b(?:is|are|be|equals)\b|t's\b|:)[\s*]*|(?<![<>!=])=(?!=)|\b(?=option )", re.I
)
_CLAUSE = re.compile(
    r"(\n|[.,;:!?](?=\s)|\b(?:but|so|thus|hence|therefore|and(?=\s+not\b))\b"
    r"|(?=\s\(?(?:because|since)\b))",
    re.I,
)
_DENIES = re.compile(
    r"(?<!\\)\b(?:not|never|neither|nor|cannot)\b(?!.*(?:\bis\b|=))|n['’]t\b"
    r"|\bis (?:wrong|incorrect)\b|^\s\(?(?:because|since)\b",
    re.I,
)
_HAN = "[\u3040-\u30ff\u4e00-\u9fff]+"
_CHINESE = {
    "不是": ", not ",
    "[选是为為有：]|等于": " is ",
    "或者?|[和与、，]": ", ",
    _HAN: " han ",
}


def in_tag(text: str) -> str:
    """Return the content of the last `<answer>…</answer>` that has any, else "".

    The opening tag may be missing, because some prompts end with it.
    """
    parts = re.split("(?i)(</?answer>)", _spoken(text))
    closed = [part.strip() for part, tag in zip(parts[::2], parts[1::2]) if "/" in tag]
    return ["", *filter(None, closed)][-1]


def _spoken(text: str) -> str:
    """Remove the model's thinking from the text, even if `<think>` is never closed."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def in_boxes(text: str) -> tuple[str | None, str]:
    r"""Return the content of the last `\boxed{…}`, and the text after it.

    Boxes that are joined by *and*, *or* or a comma are one list. A box that is never
    closed is an empty answer; if there is no box, the content is None.
    """
    found, after = list[str](), ""
    for piece in text.split(r"\boxed")[1:]:
        joins = found and _JOINS_BOXES.fullmatch(after)
        inside, after = _braced(piece.lstrip())
        found = [*(found if joins else []), inside]
    return ", ".join(found) if found else None, after


def _braced(text: str) -> tuple[str, str]:
    """Return the content of the braces with which a text begins, and the rest."""
    if not text.startswith("{"):
        short, space, rest = text.partition(" ")
        return short.strip("$"), space + rest
    depth = 0
    for end, sign in enumerate(text):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if depth == 0:
            return text[1:end].strip(), text[end + 1 :]
    return "", ""


def final(text: str) -> tuple[str, bool]:
    """Return the final answer, and whether a tag or a box marks it.

    Without a mark the whole text is returned, or what follows `answer is` after a box.
    """
    inside = in_tag(text)
    text = inside or _spoken(text)
    boxed, after = in_boxes(text)
    if boxed is None:
        return text.strip(), bool(inside)
    later = _LATER.search(after)
    return (after[later.start() :], False) if later else (boxed, True)


def parts(text: str) -> list[str]:
    """Return the sentences that may hold the answer: the one after `answer is`, then
    all from the last to the first."""
    *_, anchor = [None, *_ANSWER.finditer(text)]
    after = text[anchor.end() :].strip() if anchor else ""
    sentences = _SENTENCE.split(after)[:1] + _SENTENCE.split(text)[::-1]
    return [part for part in sentences if part.strip(STOPS)]


def affirmed(text: str, like: str) -> str:
    """Remove clauses that say what the answer is not, and those that begin a reason."""
    if _DENIES.search(like):
        return text
    clauses = _CLAUSE.split(text)
    left = "".join("" if _DENIES.search(clause) else clause for clause in clauses)
    return re.sub(r"\b(?:and|but)\s*$", "", left)


def english(text: str, like: str) -> str:
    """Translate the Chinese or Japanese words that lead to an answer."""
    if re.search(_HAN, text) and not re.search(_HAN, like):
        for pattern, word in _CHINESE.items():
            text = re.sub(pattern, word, text)
    return text


# Words, letters, and whatever else is compared as text

_COSTUME = re.compile(r"\\(?:text(?:bf)?|mathrm|mbox)(?=\{)|\\(?:left|right)\b|\\ ")
CHOICE = re.compile(r"\W*([A-Z])(?:(?:[)}\]]\s*|[.:]\s+)(\S.*)|\W*$)", re.S)
_LETTER = re.compile(  # neither I nor an article, nor an unknown
    r"(?<![\w'’\\])(?!A (?!is|or|and)[a-z])([A-HJ-Z])(?![\w'’]|\s*[-=+*/^<>])"
)
_VERDICT = re.compile(  # Yes, it is.
    r"(?is)\W*(yes|no|true|false)\W*?[,.!](?!.*\b(?:yes|no|true|false)\b)"
)


def plain(text: str) -> str:
    """Remove what a writer may choose freely: spaces, markup, final stops, case."""
    text = re.sub(r"\\textcircled\{?(\d)\}?", r"(\1)", text)
    text = re.sub("[①-⑳]", lambda one: f"({unicodedata.digit(one[0], 0)})", text)
    text = text.replace("$", "").replace(r"\dfrac", r"\frac")
    text = _COSTUME.sub("", text).strip(STOPS.replace("!", ""))
    text = re.sub(r"(?<!\d)!+$", "", text)  # 5! is not 5
    text = re.sub(r"(?<!\w)[\s、]+|[\s、]+(?!\w)", "", text)
    text = re.sub(r"\{(\w)\}", r"\1", re.sub(r"\s+", " ", text))
    while text[:1] + text[-1:] in ("()", "{}", "[]", "<>"):
        text = text[1:-1]
    return text.casefold()


def says(text: str, reference: str, is_marked: bool) -> bool:
    """True if the answer is `reference`, compared as text."""
    part = text if is_marked else [*parts(text), ""][0]
    said = [text, part, *(part[m.end() :] for m in [*LEAD.finditer(part)][-8:])]
    wanted, last = {plain(reference)}, part.split()
    if own := CHOICE.match(_COSTUME.sub("", reference)):
        wanted |= {plain(own[1]), plain(own[2] or own[1])}  # (D) Marta: either will do
        if any({*_LETTER.findall(_COSTUME.sub("", one))} == {own[1]} for one in said):
            return True
    else:
        n = len(reference.split())
        if last[-n - 1 : -n] not in (["or"], ["and"]):
            said.append(" ".join(last[-n:]))
        if verdict := _VERDICT.match(text):
            said.append(verdict[1])
    return bool(wanted & {*map(plain, said)})


# Numbers and formulas

_SIGNS = {
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "⁄": "/", "≤": r"\le ",
    "≥": r"\ge ", "≠": r"\ne ", "∞": r"\infty ", "π": r"\pi ", "√": r"\sqrt ",
    "∪": r"\cup ", "∈": r"\in ", "∅": r"\emptyset ", "±": r"\pm ", "²": "^2",
    "³": "^3", "°": r"^\circ ", "**": "^", r"\$": "", r"\left(": "(", r"\right)": ")",
}  # fmt: skip
_PRODUCT = re.compile(
    r"(?<=[\d)])\s*(?=\(\s*-?(?:\d+(?:\.\d+)?|\\frac\{\d+\}\{\d+\})\s*\))"
)
_REPEATING = re.compile(r"(\.\d*)\\(?:overline|bar|dot) *(?:\{(\d+)\}|(\d))")
_NAMES = "sqrt|pi|infty|(?:arc)?(?:sin|cos|tan)|log|ln|exp|alpha|beta|theta|lambda"
_TYPED = (
    (re.compile(rf"(?<![A-Za-z\\])(?:{_NAMES})(?![A-Za-z])"), r"\\\g<0>"),
    (re.compile(r"(?<=\d)[eE]([-+]?\d+)"), r"\\cdot10^{\1}"),
    (re.compile(r"(?<![\d./])(\d+) (\d+)/(\d+)(?![\d./])"), r"\1\\frac{\2}{\3}"),
    (re.compile(r"\\sqrt ?\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\s*(?:,|;|\\text\{)?\s*\b(?:and|or)\b\s*\}?\s*"), ", "),
    (re.compile(r"\b(?:either|between)\b", re.I), ""),
    (re.compile(r"(?<=\d) x (?=\d)"), r"\\times "),
)
_SYMBOL = "(?:[kcmdµμ]?(?:m|g|s|l|L|J|W|N|Pa|mol)|h|hr|min|ft|in|mi|yd|lb)"
_MEASURE = re.compile(  # 60 km/h, 10 m/s², 5 cm^2, 12m², 30°C; 5m^2 may be a formula
    rf"(?<=\d)(?: ?°[CF]| ?{_SYMBOL}(?:[/·]{_SYMBOL})?[²³23]?"
    rf"| {_SYMBOL}(?:/{_SYMBOL})?\^[23])(?=[ .*]*$)|(?<=\d) {_SYMBOL}(?= [-+=] )"
)
_CHOSEN = re.compile(
    r"(?:^|(?<=\$))(?:\\text(?:bf)?\{)?\(?[A-J][).:](?:\s|\\[ ;,]|\})+(?=[^\s$])"
)
_OPERATOR = re.compile(
    r"[-+*/^_=<>!\\].*\w|\w.*[-+*/^_=<>!\\]|\d[A-Za-z(]|[A-Za-z]\(?\d|\)\d"
    r"|\A[\s,.:;(){}\[\]]*\d[\s,.:;(){}\[\]\d]*\Z",
    re.S,
)


def numbers(text: str, like: str) -> list[str]:
    """Return the numbers in `text`, with a comma or a plus only if `like` has one."""
    found = NUMBER.findall(joined(text, like))
    if "," not in like:
        found = [number.replace(",", "") for number in found]
    return [number.removeprefix("" if "+" in like else "+") for number in found]


def joined(text: str, like: str = "") -> str:
    r"""Replace all dashes by hyphens, and remove what separates thousands: a thin
    space, LaTeX's `\,` or `{,}`, or `_`.

    A plain space separates thousands only if `like` has more than three digits before
    its point, because 100 200 may be two numbers. If it has a point, 2,74 is 2.74.
    """
    text = _GROUPED.sub("", text.translate(_DASHES))
    if len(re.sub(r"\D", "", like.split(".")[0])) > 3:
        text = _SPACED.sub(lambda number: number[0].replace(" ", ""), text)
    return re.sub(r"(?<=\d),(?=\d\d?(?![\d,]))", ".", text) if "." in like else text


def quantity(text: str) -> str:
    """Return the first quantity after the last `is`, `:` or `=`, else the last one.

    `text` must contain one.
    """
    found = [*QUOTIENT.finditer(text)]
    leads = [lead.end() for lead in LEAD.finditer(text, 0, found[-1].start() + 1)]
    begins = leads[-1] if leads else found[-1].start()
    return next(match[0] for match in found if match.start() >= begins)


def signs(text: str) -> str:
    r"""Rewrite characters such as `½` and `π` as LaTeX, `2(3)` as a product, and a
    repeating decimal with many digits."""
    for sign, command in _SIGNS.items():
        text = text.replace(sign, command)
    text = re.sub("[¼-¾⅐-⅞]", _fraction, text)
    text = re.sub(r"\bP\([^()]*\)(?=\s*=)", "P", text)
    text = _REPEATING.sub(lambda one: one[1] + 12 * (one[2] or one[3]), text)
    return _PRODUCT.sub(r" \\cdot ", text)


def _fraction(sign: re.Match) -> str:
    over, under = unicodedata.normalize("NFKC", sign[0]).split("⁄")
    return rf"\frac{{{over}}}{{{under}}}"


def formula(text: str) -> str:
    """Return the text, typed or LaTeX, as LaTeX between two `$`."""
    text = signs(joined(text))
    for pattern, rewritten in _TYPED:
        text = pattern.sub(rewritten, text)
    return f"${text.replace('$', '').strip()}$"


def is_formula(text: str) -> bool:
    """True if all of the text may be a formula: numbers, or an operator and no word."""
    text = re.sub(r"\\(?:text|mbox|mathrm)\{[^{}]*\}", "", formula(text)).strip("$")
    rest = re.sub(r"\\(?:begin|end)\{\w+\}|\\[A-Za-z]+", "", text)
    return bool(_OPERATOR.search(text)) and not re.search(r"[^\W\d_]{3}", rest)


def mathematics(text: str, reference: str, is_marked: bool) -> str:
    """Return the text in which math-verify is to find the answer."""
    number = QUOTIENT.fullmatch(reference) is not None
    text = _CHOSEN.sub("", joined(text.strip("*_` "), reference if number else ""))
    text = text.replace(r"\$", "")
    if text.count("$") % 2:  # money: formulas have two
        text = text.replace("$", "")
    if not is_marked and re.search(r"\$|\\[(\[]", text):
        return signs(text)
    for part in [text] if is_marked else parts(text):
        end = part
        if not is_marked:
            end = re.split(r"\b(?:is|are)\b|t's\b|(?<! ):\s", part)[-1].rstrip(STOPS)
        end = _MEASURE.sub("", end) if number else end
        if is_formula(end):
            return formula(end)
        if number and QUOTIENT.search(part):
            return formula(quantity(part))
    return formula(text) if is_marked else text
