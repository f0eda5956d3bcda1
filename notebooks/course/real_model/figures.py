"""Figures of chapter 13: a broken run."""

from matplotlib.figure import Figure

from course.kit.plots import primitives as draw
from course.kit.plots.style import FREE
from refimpl.history import History


def broken(right: History, other: History, title: str) -> Figure:
    """Exercise 13.1: loss, reward and answers without an end, every ten steps."""
    panels = {"loss": "nats/token", "reward": "mean", "cut_off": "share"}
    names = ("loss", "mean reward", "answers cut off")
    figure, axes = draw.panel_grid(3, (8, 3.2))
    for axis, column, name, unit in zip(axes, panels, names, panels.values()):
        for label, run, dash, colour in (
            ("right", right, "-", FREE[0]),
            ("with the bug", other, "--", FREE[1]),
        ):
            over = [10 * n for n in draw.steps(run[column])]
            draw.line(axis, over, run[column], colour, dash, label)
        axis.set(xlabel="step", title=name, ylabel=unit)
        axis.set_ylim(bottom=0) if column == "loss" else axis.set_ylim(-0.03, 1.05)
    draw.heading(figure, axes[0], title)
    return draw.caption(figure, "one run each, the same seeds")
