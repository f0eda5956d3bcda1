"""The cheat sheet: what a reader needs of each method, as the code has it."""

import html
import re
import sys
from functools import cache

import nbformat
import torch

from course.kit import elsewhere, methods, misreading
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.curves import curve
from web.mathematics import mathml
from web.page import NOTEBOOKS, Page

STARTS = (0, 6, 11, 16, *range(21, len(ALGORITHMS), 5))
"""The first method of each sheet of paper."""
LEAD = """<h1 id="top">The cheat sheet</h1>
<p>Every method, to be printed. Each one climbs the sum of weight ×
objective over all tokens; the <em>normaliser</em> makes the weight. The <em>gate</em>
is the share of a token's gradient that is left at a ratio r, computed by the loss that
trains: where Â &gt; 0 as a solid line, where Â &lt; 0 as a dashed one. Below each
method stand the settings of TRL 1.16 and verl 0.9.1.</p>"""


def page(group: str) -> Page:
    cards = [card(algorithm) for algorithm in ALGORITHMS.values()]
    sheets = (cards[i:j] for i, j in zip(STARTS, (*STARTS[1:], None)))
    return Page(
        "cheat_sheet.html",
        "The cheat sheet",
        LEAD + "".join(f'<div class="sheet">{"".join(one)}</div>' for one in sheets),
        group,
        styles=("cheat_sheet.css",),
        summary="Each method's objective, gate, defaults, misreading, and the settings "
        "of TRL and verl, to be printed.",
    )


def card(algorithm: Algorithm) -> str:
    rows = "".join(
        f"<div><dt>{name}</dt><dd>{cell}</dd></div>"
        for name, cell in cells(algorithm).items()
    )
    return (
        f'<article><h2 id="{algorithm.name}">{html.escape(algorithm.title)}</h2>'
        f"{objective(algorithm)}{gate(algorithm)}<dl>{rows}</dl></article>"
    )


def cells(algorithm: Algorithm) -> dict[str, str]:
    """What stands below the gate, each as HTML; what nobody wrote is left out."""
    parent = ALGORITHMS.get(algorithm.parent or "")
    against = f"against {parent.title}: " if parent else ""
    rows = {
        "new": html.escape(against + algorithm.changed),
        "advantage": function(algorithm.advantages),
        "normaliser": function(algorithm.normaliser),
        "defaults": settings(algorithm),
        "misread": misread(algorithm.name),
        "TRL": html.escape(elsewhere.text(algorithm.name, "TRL")),
        "verl": html.escape(elsewhere.text(algorithm.name, "verl")),
        "see": see(algorithm),
    }
    return {name: cell for name, cell in rows.items() if cell}


def misread(name: str) -> str:
    """The misreading that costs most, and what is so instead."""
    known = methods.of(name).misreading
    if not known:
        return ""
    one = misreading(known)
    return f"<q>{html.escape(one.claim)}</q> {html.escape(one.correction)}"


def see(algorithm: Algorithm) -> str:
    """The chapter, where there is one, and the paper."""
    chapter = methods.of(algorithm.name).chapter
    link = f'<a href="{chapter}.html">chapter {chapter[:2]}</a>; ' if chapter else ""
    return link + paper(algorithm.paper)


def function(of) -> str:
    """Its name and the first sentence of what it says of itself."""
    line = (of.__doc__ or "").partition("\n")[0]
    first = re.split(r"(?<!Eq)\. ", line)[0].rstrip(".")
    return f"<code>{of.__name__}</code>" + f": {html.escape(first)}" * bool(first)


def settings(algorithm: Algorithm) -> str:
    """Hyperparameters, and what the paper prescribes of the training."""
    every = {**algorithm.defaults, **algorithm.training}
    return ", ".join(f"<code>{name}={value}</code>" for name, value in every.items())


def paper(said: str) -> str:
    """The paper with its arXiv id as a link."""
    link = r'<a href="https://arxiv.org/abs/\1">\1</a>'
    return re.sub(r"(\d{4}\.\d{5})", link, html.escape(said))


def objective(algorithm: Algorithm) -> str:
    """The formula of its chapter; where that states none of it, the docstring's."""
    lines = [
        f'<div class="math" tabindex="0">{mathml(part, "block")}</div>'
        for part in formula(algorithm.name)
    ]
    plain = f'<pre tabindex="0">{html.escape(equation(algorithm))}</pre>'
    return "".join(lines) or plain


def formula(name: str) -> list[str]:
    """The TeX for J, its own or its chapter's, in parts that fit a narrow column."""
    known = methods.of(name)
    if known.formula:
        return known.formula.split(r"\qquad")
    first = {one.chapter: n for n, one in reversed(methods.KNOWN.method.items())}
    if not known.chapter or first[known.chapter] != name:
        return []
    stated = (x for x in displayed(known.chapter) if re.search(r"(^|\s)J\s*=", x))
    parts = re.split(r"\\qquad", next(stated, ""))
    return [part.strip().strip(",. ") for part in parts if part.strip()]


@cache
def displayed(chapter: str) -> tuple[str, ...]:
    """The formulas of the sections that state a chapter's idea, and all of J."""
    cells = nbformat.read(NOTEBOOKS / f"{chapter}.ipynb", as_version=4).cells
    prose = "\n\n".join(c.source for c in cells if c.cell_type == "markdown")
    sections = re.split(r"^(?=## )", prose, flags=re.M)
    told = ("## The idea", "## The whole objective")
    idea = "".join(one for one in sections if one.startswith(told))
    found = re.findall(r"\$\$(.*?)\$\$", idea, re.S)
    return tuple(one.strip() for one in found)


def equation(algorithm: Algorithm) -> str:
    """The first indented lines of its file's docstring."""
    module = sys.modules[f"refimpl.algorithms.{algorithm.name}"]
    lines = (module.__doc__ or "").splitlines()
    block = [line[4:] for line in lines if line.startswith("    ")]
    return "\n".join(block)


ACROSS, DOWN, LARGEST = 200, 64, 1.5
"""Of the drawing; its right edge is at r = 3, its upper edge at a gate of 1.5."""
TRIED = (0.5, 0.9, 1.1, 1.5, 2.0)
SAMPLED = dict.fromkeys(("dppo_tv", "dppo_kl", "ipo"), 0.3)
"""Where a gate looks at probabilities: that of the token which is drawn."""


def gate(algorithm: Algorithm) -> str:
    """The gate for both signs as a picture that is also text."""
    paths = "".join(
        f'<path class="{name}" d="{path(algorithm, sign)}"/>'
        for name, sign in (("good", 1.0), ("bad", -1.0))
    )
    one, right = DOWN - DOWN / LARGEST, ACROSS / 3
    axes = (
        f'<path class="axis" d="M0 {DOWN}H{ACROSS}M0 {one:.1f}H{ACROSS}'
        f'M{right:.1f} 0V{DOWN}"/>'
        f'<text x="{right:.1f}" y="{DOWN + 10}" text-anchor="middle">r = 1</text>'
        f'<text x="{ACROSS - 2}" y="{one - 2:.1f}" text-anchor="end">1</text>'
    )
    return (
        f'<svg viewBox="0 0 {ACROSS} {DOWN}" role="img" '
        f'aria-label="{html.escape(said(algorithm))}">{axes}{paths}</svg>'
    )


def path(algorithm: Algorithm, sign: float) -> str:
    """The curve's corners, and every eighth point between; nothing above the frame."""
    made = curve(algorithm, sign, old=SAMPLED.get(algorithm.name, 1.0))
    x = made.ratio * (ACROSS / 3)
    y = DOWN * (1 - made.gate / LARGEST)
    corner = torch.zeros_like(y, dtype=torch.bool)
    corner[1:-1] = (y[2:] - 2 * y[1:-1] + y[:-2]).abs() > 0.5
    keep = corner | (torch.arange(len(y)) % 8 == 0)
    keep[-1] = True
    keep &= y >= 0
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x[keep], y[keep]))


def said(algorithm: Algorithm) -> str:
    """The gate in words, at ratios that a reader may want to compare."""
    ratios = torch.tensor(TRIED)
    old = SAMPLED.get(algorithm.name, 1.0)
    good, bad = (curve(algorithm, sign, ratios, old).gate for sign in (1.0, -1.0))
    token = f", for a token of probability {old}," if old < 1 else ""
    at = ", ".join(map(str, TRIED))
    return (
        f"The gate of {algorithm.title}{token} at the ratios {at}: where the advantage "
        f"is positive {numbers(good)}; where it is negative {numbers(bad)}."
    )


def numbers(values: torch.Tensor) -> str:
    return ", ".join(f"{value + 0:.2g}" for value in values.tolist())
