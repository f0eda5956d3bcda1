"""Figures: a function takes data and returns a `Figure`.

It computes nothing that a reader might want to check. `style` holds the colours,
`primitives` the elements that recur, and `shared` the figures of several chapters.
"""

import io
import os
from pathlib import Path

import matplotlib.pyplot as plt
import PIL.Image
from IPython.display import Image, display
from matplotlib.figure import Figure

from course.kit.plots import normalisers, stored, tokens  # noqa: F401
from course.kit.plots.shared import (  # noqa: F401
    PANELS,
    by_rollout,
    curves,
    training,
)
from course.kit.plots.words import words


def folder() -> Path:
    """Where committed figures go: `$REFIMPL_FIGURES`, else the repository's folder."""
    default = Path(__file__).resolve().parents[4] / "figures"
    made = Path(os.environ.get("REFIMPL_FIGURES") or default)
    made.mkdir(parents=True, exist_ok=True)
    return made


def show(figure: Figure, name: str = "") -> None:
    """Show a figure with its words.

    A named figure is also written to `$REFIMPL_FIGURES` if that is set, so a reader's
    run leaves the committed figures alone.
    """
    width = round(figure.get_figwidth() * figure.dpi)
    picture = png(figure)
    if name and "REFIMPL_FIGURES" in os.environ:
        (folder() / f"{name}.png").write_bytes(picture)
    display(Image(picture, format="png", width=width, alt=words(figure)))
    plt.close(figure)


def png(figure: Figure) -> bytes:
    """The figure in 256 colours, twice as fine as it is shown."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=2 * figure.dpi)
    few = PIL.Image.open(drawn).convert("RGB").quantize(256, dither=0)
    few.save(small, "png", optimize=True)
    return small.getvalue()
