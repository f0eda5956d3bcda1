"""Figures that several chapters draw: curves of a loss, a training run, its habits."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import primitives as draw
from course.plots.style import DASHES, HABIT_COLOURS, arms
from refimpl.curves import Curve
from refimpl.history import History

PANELS = (
    ("reward", "reward (training)"),
    ("habit/careful", "share of careful answers"),
    ("completions/mean_length", "response length (tokens)"),
    ("entropy", "entropy (nats/token)"),
    ("clip_ratio/region_mean", "clipped tokens (sign-aware)"),
    ("ratio/max_deviation", "largest |ratio − 1|"),
)


def curves(
    named: Mapping[str, Mapping[int, Curve]], colours: Sequence[str] = ()
) -> Figure:
    """Objective (top) and gradient coefficient (bottom), for Â > 0 and Â < 0.

    `named[label][+1]` and `named[label][-1]` are curves for the two signs.
    """
    figure, axes = plt.subplots(2, 2, figsize=(9, 5.4), sharex=True)
    colours = colours or [colour for colour, _ in arms(named)]
    for column, (sign, title) in zip(axes.T, draw.SIGNS.items()):
        for (label, by_sign), colour, dash in zip(named.items(), colours, DASHES * 6):
            one, line = by_sign[sign], {"color": colour, "label": label}
            column[0].plot(one.ratio, one.objective, dash, **line)
            column[1].plot(one.ratio, one.coefficient, dash, **line)
        for axis in column:
            draw.rule(axis, x=1)
        column[0].set_title(title)
        column[1].set_xlabel("ratio  r = π_θ / π_old")
    axes[0, 0].set_ylabel("objective")
    axes[1, 0].set_ylabel("gradient coefficient  c = g·r")
    axes[0, 0].legend(loc="best")
    return figure


def training(
    runs: Mapping[str, Sequence[History]],
    panels: Sequence[tuple[str, str]] = PANELS,
) -> Figure:
    """One panel per metric, one colour per method: median over seeds, and range."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = draw.panel_grid(len(panels), (3.2 * columns, 2.5 * rows), columns)
    draw.metric_panels(axes, runs, panels, arms(runs), ticks=5)
    axes[0].legend(loc="lower right")
    return figure


def habit_shares(axis, history: History) -> None:
    """The share of each habit, by rollout."""
    for name, colour in HABIT_COLOURS.items():
        shares = history[f"habit/{name}"]
        axis.plot(draw.steps(shares), shares, color=colour, label=name)
    axis.set(title="share of each habit", ylim=(-0.02, 1.02))
    draw.rollout_axis(axis, 8)


def habits(history: History) -> Figure:
    """What was learned: the share of each habit, and how often each is right."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    habit_shares(left, history)
    left.legend(loc="center right")
    for name, colour in HABIT_COLOURS.items():
        accuracy = history[f"habit_accuracy/{name}"]
        right.plot(
            draw.steps(accuracy), accuracy, color=colour, marker=".", linewidth=1
        )
    right.set(title="accuracy within the habit", ylim=(-0.02, 1.02))
    draw.rollout_axis(right, 8)
    return figure
