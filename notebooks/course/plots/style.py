"""One style for every figure: colours, dashes, matplotlib's settings.

The named colours are Okabe and Ito's, safe for colour-blind readers.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

import matplotlib as mpl

from refimpl.algorithms import ALGORITHMS

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PINK = (
    "#000000 #E69F00 #56B4E9 #009E73 #F0E442 #0072B2 #D55E00 #CC79A7".split()
)
GREY = "#8C8C8C"
COLOURS = {
    "reinforce": GREY,
    "ppo": BLACK,
    "grpo": BLUE,
    "dr_grpo": SKY,
    "gspo": GREEN,
    "gspo_token": "#66C2A5",
    "dapo": ORANGE,
    "cispo": RED,
    "gmpo": PINK,
    "rspo": "#7B3294",
    "sapo": "#A6761D",
}
HABIT_COLOURS = {"careful": GREEN, "guess": ORANGE, "ramble": PINK}
RIGHT, WRONG = GREEN, ORANGE  # a response
GOOD, BAD = BLUE, RED  # a token with Â > 0, with Â < 0
CYCLE = (BLUE, RED, GREEN, ORANGE, PINK, SKY, BLACK)
DASHES = ("-", "--", "-.", ":")

BEGINNINGS = {
    "unclipped": COLOURS["reinforce"],
    **COLOURS,
    **{a.title.lower(): COLOURS[a.name] for a in ALGORITHMS.values()},
}
"""What a label may begin with, in lower case: a method's name or its title."""


def use() -> None:
    """Make this matplotlib's style in the running process."""
    mpl.rcParams.update(
        {
            "figure.dpi": 110,
            "savefig.dpi": 110,
            "figure.constrained_layout.use": True,
            "font.size": 10,
            "axes.titlesize": 11,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.25,
            "legend.frameon": False,
            "lines.linewidth": 1.8,
        }
    )


def colour(
    label: str, own: Mapping[str, str] | None = None, default: str | None = None
) -> str | None:
    """The colour of the method that the label begins with, whatever follows it.

    `own` adds beginnings for one chapter; the longest that fits counts. `default` is
    for a label that begins with none.
    """
    known = BEGINNINGS | {k.lower(): c for k, c in (own or {}).items()}
    fits = [k for k in known if re.match(re.escape(k) + r"(?!\w)", label, re.I)]
    return known[max(fits, key=len)] if fits else default


def arms(labels: Iterable[str]) -> list[tuple[str, str]]:
    """A colour and a dash for every label of a figure, no two alike.

    A method has its own colour, and the shortest of its labels the solid line; what
    is no method takes a colour that is free.
    """
    labels = list(labels)
    colours = [colour(label) for label in labels]
    for i, known in enumerate(colours):
        if known is None:
            cycle = [CYCLE[(i + k) % len(CYCLE)] for k in range(len(CYCLE))]
            colours[i] = next((c for c in cycle if c not in colours), cycle[0])
    dashes, used = [""] * len(labels), Counter()
    for i in sorted(range(len(labels)), key=lambda i: len(labels[i])):
        dashes[i] = DASHES[used[colours[i]] % len(DASHES)]
        used[colours[i]] += 1
    return list(zip(colours, dashes))
