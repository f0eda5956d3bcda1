"""The cheat sheet: the essentials of each method, taken from the code."""

import re
import sys
from functools import cache

import torch
from markupsafe import Markup, escape

from course.kit import elsewhere, methods, misreading
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.curves import curve
from web.mathematics import mathml
from web.page import Page, made, prose

STARTS = (0, 6, 11, 16, *range(22, len(ALGORITHMS), 5))
"""The first method of each sheet of paper."""


def page(group: str) -> Page:
    every = [*ALGORITHMS.values()]
    return made(
        "cheat_sheet",
        "The cheat sheet",
        group,
        "Each method's objective, gate, defaults, misreading, and settings in TRL and "
        "verl, ready to print.",
        sheets=[every[i:j] for i, j in zip(STARTS, (*STARTS[1:], None))],
        formula=formula,
        equation=equation,
        path=path,
        said=said,
        cells=cells,
    )


def cells(method: Algorithm) -> dict[str, str]:
    """Return the cells below a method's gate, empty where nothing is known."""
    known, parent = methods.of(method.name), ALGORITHMS.get(method.parent or "")
    settings = method.defaults | method.training
    chapter = Markup('<a href="{}.html">chapter {}</a>; ').format(
        known.chapter, known.chapter[:2]
    )
    return {
        "new": (f"against {parent.title}: " if parent else "") + method.changed,
        "advantage": function(method.advantages),
        "normaliser": function(method.normaliser),
        "defaults": Markup(", ").join(
            Markup("<code>{}={}</code>").format(*pair) for pair in settings.items()
        ),
        "misread": misread(known.misreading) if known.misreading else "",
        "TRL": elsewhere.text(method.name, "TRL"),
        "verl": elsewhere.text(method.name, "verl"),
        "see": (chapter if known.chapter else "") + paper(method.paper),
    }


def misread(name: str) -> str:
    """Format the costliest misreading and its correction."""
    claim = misreading(name)
    return Markup("<q>{}</q> {}").format(claim.claim, claim.correction)


def function(of) -> str:
    """Format a function's name and the first sentence of its docstring."""
    line = (of.__doc__ or "").partition("\n")[0]
    first = re.split(r"(?<!Eq)\. ", line)[0].rstrip(".")
    return Markup("<code>{}</code>").format(of.__name__) + f": {first}" * bool(first)


def paper(source: str) -> str:
    """Format a paper, with its arXiv id as a link."""
    link = r'<a href="https://arxiv.org/abs/\1">\1</a>'
    return Markup(re.sub(r"(\d{4}\.\d{5})", link, str(escape(source))))


def formula(name: str) -> list[str]:
    """Return a method's formula as MathML, in parts that fit a narrow column."""
    return [mathml(part, "block") for part in tex(name)]


def tex(name: str) -> list[str]:
    """Return a method's TeX for J: its own, or its chapter's."""
    known = methods.of(name)
    if known.formula:
        return known.formula.split(r"\qquad")
    first = {method.chapter: n for n, method in reversed(methods.KNOWN.method.items())}
    if not known.chapter or first[known.chapter] != name:
        return []
    stated = (x for x in displayed(known.chapter) if re.search(r"(^|\s)J\s*=", x))
    parts = re.split(r"\\qquad", next(stated, ""))
    return [part.strip().strip(",. ") for part in parts if part.strip()]


@cache
def displayed(chapter: str) -> tuple[str, ...]:
    """Return the displayed formulas of the sections that state an idea and all of J."""
    sections = re.split(r"^(?=## )", prose(chapter), flags=re.M)
    heads = ("## The idea", "## The whole objective")
    idea = "".join(section for section in sections if section.startswith(heads))
    formulas = re.findall(r"\$\$(.*?)\$\$", idea, re.S)
    return tuple(formula.strip() for formula in formulas)


def equation(name: str) -> str:
    """Return the indented lines of the docstring of a method's file."""
    module = sys.modules[f"refimpl.algorithms.{name}"]
    lines = (module.__doc__ or "").splitlines()
    block = [line[4:] for line in lines if line.startswith("    ")]
    return "\n".join(block)


TRIED = (0.5, 0.9, 1.1, 1.5, 2.0)
SAMPLED = dict.fromkeys(("dppo_tv", "dppo_kl", "ipo", "flash_reinforce"), 0.3)
"""The token's probability, for gates that depend on it."""


def path(method: Algorithm, sign: float) -> str:
    """Draw a gate as an SVG path: corners, and every eighth point within the frame."""
    gate = curve(method, sign, old=SAMPLED.get(method.name, 1.0))
    x, y = gate.ratio * 200 / 3, 64 * (1 - gate.gate / 1.5)  # of 200 by 64
    corner = torch.zeros_like(y, dtype=torch.bool)
    corner[1:-1] = (y[2:] - 2 * y[1:-1] + y[:-2]).abs() > 0.5
    inside = (y >= 0) & (y <= 64)
    keep = corner | (torch.arange(len(y)) % 8 == 0)
    keep[-1] = True
    drawn, last = "", None
    for i in (keep & inside).nonzero()[:, 0].tolist():
        joined = last is not None and bool(inside[last:i].all())
        drawn += f"{'L' if joined else 'M'}{x[i]:.1f} {y[i]:.1f}"
        last = i
    return drawn


def said(method: Algorithm) -> str:
    """Describe a gate in words, by its values at some ratios."""
    ratios = torch.tensor(TRIED)
    old = SAMPLED.get(method.name, 1.0)
    good, bad = (curve(method, sign, ratios, old).gate for sign in (1.0, -1.0))
    token = f", for a token of probability {old}," if old < 1 else ""
    at = ", ".join(map(str, TRIED))
    return (
        f"The gate of {method.title}{token} at the ratios {at}: where the advantage "
        f"is positive {numbers(good)}; where it is negative {numbers(bad)}."
    )


def numbers(values: torch.Tensor) -> str:
    return ", ".join(f"{value + 0:.2g}" for value in values.tolist())
