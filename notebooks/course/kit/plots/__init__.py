"""Figures: a function takes data and returns a `Figure`.

It computes nothing that a reader would want to check. `style` holds the colours,
`primitives` what is drawn again and again, `shared` the figures of several chapters;
the other modules hold what is drawn once, one per chapter.
"""

import io
import os
from pathlib import Path

import matplotlib.pyplot as plt
import PIL.Image
from IPython.display import Image, display
from matplotlib.figure import Figure

from course.kit.plots.shared import (  # noqa: F401
    PANELS,
    by_rollout,
    curves,
    training,
)
from course.kit.plots.words import words


def folder(of: str = "figures") -> Path:
    """Where committed figures go: `$REFIMPL_FIGURES`, else a folder of the repository.

    What pages show by its address is in `LINKED`, below the folder from which a reader
    starts JupyterLab: of what lies above, it shows nothing.
    """
    default = Path(__file__).resolve().parents[4] / of
    made = Path(os.environ.get("REFIMPL_FIGURES") or default)
    made.mkdir(parents=True, exist_ok=True)
    return made


LINKED = "notebooks/figures"


def show(figure: Figure, name: str = "") -> None:
    """Show a figure with its words.

    One that has a name is also written to `$REFIMPL_FIGURES`, if that is set: a
    reader's run leaves the committed figures alone.
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
