"""Figures: a function takes data and returns a `Figure`.

It computes nothing that a reader would want to check. `style` holds the colours,
`primitives` what is drawn again and again, `shared` the figures of several chapters;
the other modules hold what is drawn once, one per chapter.
"""

import io
import os
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots.shared import (  # noqa: F401
    PANELS,
    curves,
    habits,
    rewards_and_clips,
    training,
)


def folder() -> Path:
    """Where figures go: `$REFIMPL_FIGURES`, else `figures/` at the top level."""
    default = Path(__file__).resolve().parents[3] / "figures"
    return Path(os.environ.get("REFIMPL_FIGURES") or default)


def save(figure: Figure, name: str) -> None:
    """Keep a figure for the gallery as `figures/<name>.png`."""
    folder().mkdir(parents=True, exist_ok=True)
    figure.savefig(folder() / f"{name}.png", metadata={"Software": None})


def png(figure: Figure) -> bytes:
    """The figure as an image, for a widget; closes it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    plt.close(figure)
    return buffer.getvalue()
