"""One style for every figure: colours, dashes, matplotlib's settings.

A method has one colour and one dash in all chapters, which nothing else uses; a method
without its own takes the next free ones (`look`). The colours were searched for
numerically: hues were kept near familiar ones (GRPO blue; a method near the one it was
made from), lightness and chroma were free. `tests/course/test_style.py` states the
required distances, also in greyscale and as seen by a deuteranope.
"""

import re
from collections import Counter
from collections.abc import Iterable

import matplotlib as mpl
from matplotlib.colors import to_hex, to_rgb

from course.kit.methods import KNOWN
from refimpl.algorithms import ALGORITHMS

Dash = str | tuple[float, tuple[float, ...]]
"""A format of `axis.plot` ("--", "o-"), or (0, lengths of dashes and gaps)."""

METHODS: dict[str, tuple[str, Dash]] = {
    name: (colour, dash if isinstance(dash, str) else (0, dash))
    for name, one in KNOWN.method.items()
    if one.look
    for colour, dash in [one.look]
}
"""The looks of `notebooks/methods.toml`."""
COLOURS = {name: colour for name, (colour, _) in METHODS.items()}
METHOD_DASHES = {name: dash for name, (_, dash) in METHODS.items()}
SAPO_NARROW = ("#AD1815", (0, (6, 1.2, 2.4, 1.2)))
"""SAPO with τ = 8.8, half as wide as GRPO's clip."""
ONE_SIDED = ("#09554A", (0, (7, 1.2, 1.2, 1.2)))
"""The gate that is soft where a token moves on and 1 where it comes back."""
YOURS = ("#C93B97", (0, (3.2, 1.6)))
"""The reader's own gate."""

RIGHT, WRONG = "#2C8F66", "#E17769"  # a response
GOOD, BAD = "#5470E1", "#C71F3F"  # a token with Â > 0, with Â < 0
HABIT_COLOURS = {"careful": "#219F8F", "guess": "#BEB529", "ramble": "#C78AD6"}
HABIT_INKS = {"careful": "#14695E", "guess": "#6B6613", "ramble": "#7A4A8A"}
"""The same colours for letters, which need more contrast."""
FREE = ("#442443", "#7381A9", "#5A623E", "#BAAF82")
"""Muted colours for quantities and settings, which are not methods."""
GREY = "#8C8C8C"
"""Lines that only guide the eye."""
INK = "#262626"
PAPER = "#FFFFFF"

BLACK = "#000000"

DASHES: tuple[Dash, ...] = ("-", "--", "-.", ":")

LOOKS: dict[str, tuple[str, Dash]] = {
    **METHODS,
    "sapo 8.8": SAPO_NARROW,
    "one-sided": ONE_SIDED,
    "yours": YOURS,
}
"""Colour and dash of everything that has its own."""

NEXT: tuple[tuple[str, Dash], ...] = (
    ("#1D5E77", (0, (10, 1.4, 3, 1.4))),
    ("#BA8353", (0, (1.2, 1.2))),
    ("#9563EE", (0, (6, 1, 1, 1, 1, 1, 1, 1))),
    ("#58C08A", (0, (4.5, 2.5))),
    ("#C2036A", (0, (2.5, 2))),
    ("#110C88", (0, (12, 1.2))),
    ("#7B1A08", (0, (3, 1, 3, 1, 1, 1))),
    ("#89CE42", (0, (1, 2.2))),
)
"""Free looks, equally distinct, for methods that have none of their own."""

OTHER_BEGINNINGS = {
    "unclipped": "reinforce",
    "ppo, grpo": "grpo",
    "sapo, τ = 8.8": "sapo 8.8",
    "one_sided": "one-sided",
    **dict.fromkeys(("mine", "my gate", "your gate"), "yours"),
}
"""What a label may begin with beside a name or a title, and whose look it then has."""


def use() -> None:
    """Make this matplotlib's style in the running process.

    Sizes are for figures of at most 8 inches: shown 400 px wide, 12 pt are 8 px high.
    """
    mpl.rcParams.update(
        {
            "figure.dpi": 110,
            "savefig.dpi": 110,
            "figure.constrained_layout.use": True,
            "figure.titlesize": 13.5,
            "figure.titleweight": "bold",
            "font.size": 12,
            "axes.titlesize": 12.5,
            "axes.labelsize": 12,
            "xtick.labelsize": 11,
            "ytick.labelsize": 11,
            "legend.fontsize": 11,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": "#777777",
            "xtick.color": "#555555",
            "ytick.color": "#555555",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.alpha": 0.25,
            "legend.frameon": False,
            "legend.handlelength": 2.8,
            "lines.linewidth": 2.2,
            "lines.solid_capstyle": "butt",  # an interval ends where it ends
            "mathtext.fontset": "dejavusans",
        }
    )


def look(name: str) -> tuple[str, Dash]:
    """Colour and dash of a key of `LOOKS`, or of a method of the registry.

    The first method that has none of its own takes the first of `NEXT`, and so on;
    where they run out, other shades of them.
    """
    if name in LOOKS:
        return LOOKS[name]
    place = [known for known in ALGORITHMS if known not in LOOKS].index(name)
    colour, dash = NEXT[place % len(NEXT)]
    return shade(colour, place // len(NEXT)), dash


def method(label: str) -> str | None:
    """Whose look a label has, by what it begins with: a name that `look` knows.

    "Dr. GRPO, G = 8" is `dr_grpo`'s. The longest beginning that fits counts.
    """
    beginnings = {name: name for name in (*LOOKS, *ALGORITHMS)} | OTHER_BEGINNINGS
    beginnings |= {one.title: name for name, one in ALGORITHMS.items()}
    fits = [k for k in beginnings if re.match(re.escape(k) + r"(?!\w)", label, re.I)]
    return beginnings[max(fits, key=len)] if fits else None


def colour(label: str, default: str | None = None) -> str | None:
    """The colour of the method that the label begins with, whatever follows it.

    `default` is for a label that begins with none.
    """
    name = method(label)
    return look(name)[0] if name else default


def shade(colour: str, step: int) -> str:
    """The same hue, lighter or darker: the look of a method's label number `step`.

    Step 0 is the colour itself. A light colour only grows darker and a dark one only
    lighter, so that every shade is seen on white; others take turns.
    """
    if step == 0:
        return colour
    red, green, blue = to_rgb(colour)
    luma = 0.3 * red + 0.59 * green + 0.11 * blue
    if luma > 0.62:
        towards, far = 0.0, step
    elif luma < 0.22:
        towards, far = 1.0, step
    else:
        towards, far = float(step % 2), (step + 1) // 2
    share = 1 - 0.62**far
    return to_hex([c + share * (towards - c) for c in (red, green, blue)])


def looks_of(labels: Iterable[str]) -> list[tuple[str, Dash]]:
    """A colour and a dash for every label of a figure, no two alike.

    A method has its own look, and so has the shortest of its labels; its others have
    another lightness of the colour and a dash that is free. What is no method takes a
    free colour.
    """
    labels = list(labels)
    owners = [method(label) for label in labels]
    known = [i for i, owner in enumerate(owners) if owner]
    known.sort(key=lambda i: len(labels[i]))
    others = [i for i, owner in enumerate(owners) if not owner]
    every = [*DASHES, *(dash for _, dash in LOOKS.values())]
    taken = {look(owners[i])[1] for i in known}
    dashes = iter([d for d in every if d not in taken] + every * len(labels))
    colours = iter([shade(c, k) for k in range(len(labels)) for c in FREE])
    steps: Counter[str] = Counter()
    looks: dict[int, tuple[str, Dash]] = {}
    for i in known:
        face, dash = look(owners[i])
        step = steps[owners[i]]
        looks[i] = (shade(face, step), next(dashes) if step else dash)
        steps[owners[i]] += 1
    looks |= {i: (next(colours), next(dashes)) for i in others}
    return [looks[i] for i in range(len(labels))]
