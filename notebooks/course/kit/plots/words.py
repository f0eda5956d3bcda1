"""A picture in words for screen readers: its title, what it shows, its footer."""

import re

from matplotlib.figure import Figure

SPOKEN = {
    r"\\hat\{?\s*A\}?": "Â",
    r"\\pi_\{?\\theta\}?": "π_θ",
    r"\\pi_\{?(?:\\mathrm\{|\\text\{)?old\}*": "π_old",
    r"\\pi": "π",
    r"\\theta": "θ",
    r"\\mu": "μ",
    r"\\tau": "τ",
    r"\\varepsilon|\\epsilon": "ε",
    r"\\beta": "β",
    r"\\gamma": "γ",
    r"\\lambda": "λ",
    r"\\rho": "ρ",
    r"\\Sigma|\\sum": "Σ",
    r"\\nabla": "∇",
    r"\\log": "log ",
    r"\\cdot": "·",
    r"\\times": "×",
    r"\\geq?": "≥",
    r"\\leq?": "≤",
    r"\\sqrt\{?": "√",
    r"\\(?:mathrm|text|bar|frac|left|right|mathbf)\b": "",
    r"\\(max|min)\b": r"\1",
    r"\\[,;!: ]": " ",
    r"[${}]": "",
}
"""matplotlib's mathematics, and words for it that a screen reader can say."""


def plain(text: str) -> str:
    """A title or label without markup, on one line."""
    for pattern, said in SPOKEN.items():
        text = re.sub(pattern, said, text)
    return " ".join(text.split())


def title(figure: Figure) -> str:
    """The finding: `primitives.finding` writes it over the legend, if there is one."""
    over = [legend.get_title().get_text() for legend in figure.legends]
    return ". ".join(filter(str.strip, [*over, figure.get_suptitle()]))


def words(figure: Figure) -> str:
    """Title. Panels: their titles. Shown: the legend. Footer."""
    legends = [*figure.legends, *filter(None, (a.get_legend() for a in figure.axes))]
    shown = [a for a in figure.axes if a.get_visible()]
    panels = [a.get_title() or a.get_title("left") or a.get_ylabel() for a in shown]
    labels = [text.get_text() for legend in legends for text in legend.get_texts()]
    parts = [title(figure), *told("Panels: ", panels), *told("Shown: ", labels)]
    parts.append(figure.get_supxlabel())
    return ". ".join(plain(part) for part in parts if part.strip())


def told(what: str, texts: list[str]) -> list[str]:
    """Join texts into one sentence without repetition; nothing for no texts."""
    texts = list(dict.fromkeys(filter(None, texts)))
    return [what + ", ".join(texts)] if texts else []
