"""Figures. Colours are Okabe and Ito's, safe for colour-blind readers.

A function here takes data and returns a `Figure`; it computes nothing that a reader
would want to check. Each topic has its own module; what all chapters share is here.
"""

import io
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from refimpl.curves import Curve
from refimpl.history import History

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


def folder() -> Path:
    """Where figures go: `$REFIMPL_FIGURES`, else `figures/` at the top level."""
    default = Path(__file__).resolve().parents[2] / "figures"
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


def curves(named: dict[str, dict[int, Curve]], colours: Sequence[str] = ()) -> Figure:
    """Objective (top) and gradient weight (bottom), for Â > 0 and Â < 0.

    `named[label][+1]` and `named[label][-1]` are curves for the two signs.
    """
    figure, axes = plt.subplots(2, 2, figsize=(9, 5.4), sharex=True)
    colours = colours or [COLOURS.get(k.lower(), c) for k, c in zip(named, _CYCLE * 3)]
    for column, sign in enumerate((1, -1)):
        for (label, by_sign), colour, dash in zip(named.items(), colours, _DASHES * 6):
            one = by_sign[sign]
            style = {"color": colour, "label": label, "linestyle": dash}
            axes[0, column].plot(one.ratio, one.objective, **style)
            axes[1, column].plot(one.ratio, one.weight, **style)
        for row in (0, 1):
            axes[row, column].axvline(1, color=GREY, linewidth=0.8, linestyle=":")
        axes[0, column].set_title(f"advantage {'> 0' if sign > 0 else '< 0'}")
        axes[1, column].set_xlabel("ratio  r = π_θ / π_old")
    axes[0, 0].set_ylabel("objective")
    axes[1, 0].set_ylabel("gradient weight  w")
    axes[0, 0].legend(loc="best")
    return figure


PANELS = (
    ("reward", "reward (training)"),
    ("habit/careful", "share of careful answers"),
    ("completions/mean_length", "response length (tokens)"),
    ("entropy", "entropy (nats/token)"),
    ("clip_ratio/region_mean", "clipped tokens (sign-aware)"),
    ("ratio/max_deviation", "largest |ratio − 1|"),
)


def training(runs: dict[str, Sequence[History]], panels=PANELS) -> Figure:
    """One panel a metric, one colour a method: median over seeds, and their range."""
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.2 * columns, 2.5 * rows), squeeze=False
    )
    colours = [COLOURS.get(k.lower(), c) for k, c in zip(runs, _CYCLE * 3)]
    for axis, (name, title) in zip(axes.flat, panels):
        for (label, histories), colour in zip(runs.items(), colours):
            if not any(name in h.columns for h in histories):
                continue
            table = list(zip(*(h[name] for h in histories)))
            steps = range(1, len(table) + 1)
            middle = [statistics.median(column) for column in table]
            axis.plot(steps, middle, color=colour, label=label)
            low, high = [min(c) for c in table], [max(c) for c in table]
            axis.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set_title(title)
        axis.set_xlabel("rollout")
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if name == "ratio/max_deviation":  # one wild token would flatten the rest
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
        else:
            axis.set_ylim(bottom=0)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    axes.flat[0].legend(loc="lower right")
    return figure


def habits(history: History) -> Figure:
    """What was learned: the share of each habit, and how often each is right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    steps = range(1, len(history) + 1)
    for name, colour in HABIT_COLOURS.items():
        left.plot(steps, history[f"habit/{name}"], color=colour, label=name)
        right.plot(
            steps, history[f"habit_accuracy/{name}"], color=colour, marker=".", lw=1
        )
    for axis in (left, right):
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    left.set(title="share of each habit", xlabel="rollout", ylim=(-0.02, 1.02))
    right.set(title="accuracy within the habit", xlabel="rollout", ylim=(-0.02, 1.02))
    left.legend(loc="center right")
    return figure


_CYCLE = [BLUE, RED, GREEN, ORANGE, PINK, SKY, BLACK]
_DASHES = ["-", "--", "-.", ":"]
