"""Figures of the stored stress runs: chapters 09 and 10."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import primitives as draw
from course.plots import style
from course.plots.style import BLACK, COLOURS, GREEN, GREY, ORANGE, RED, SKY

OWN = {  # where arms of one method stand side by side
    "SAPO": BLACK,
    "SAPO as published": COLOURS["sapo"],
    "SAPO 1.0": COLOURS["sapo"],
    "SAPO, τ = 1": COLOURS["sapo"],
    "SAPO 8.8": RED,
    "SAPO, τ = 8.8": RED,
    "one-sided": GREEN,
    "one-sided 8.8, Â > 0": SKY,
    "one-sided 8.8, Â < 0": ORANGE,
}


def colour(label: str) -> str:
    """One colour for an arm in every figure of the two chapters."""
    return style.colour(label, OWN, GREY)


def accuracies(
    settings: dict[str, dict[str, Sequence[float]]], start: float | None = None
) -> Figure:
    """Final accuracy of every seed: one panel per setting, one row per arm."""
    height = 0.36 * max(map(len, settings.values())) + 1.1
    size = (8 if len(settings) == 1 else 10, height)
    figure, axes = draw.panel_grid(len(settings), size)
    for axis, (setting, runs) in zip(axes, settings.items()):
        draw.dots(axis, runs)
        axis.tick_params("y", labelsize=9)
        axis.set(xlim=(-0.02, 1.02), xlabel="held-out accuracy", title=setting)
        if start is not None:
            label = "rewards of\nrollout 1"
            draw.rule(axis, x=start, colour=GREEN, width=1.8, label=label)
            axis.legend(loc="upper right")
    return figure


def over_time(
    runs: dict[str, Sequence[Sequence[float]]], live: Sequence[float], title: str
) -> Figure:
    """Reward by rollout: median and range of the stored seeds, and a run made here."""
    figure, axis = plt.subplots(figsize=(8, 3.3))
    for label, rewards in runs.items():
        draw.band(axis, rewards, colour(label), label)
    axis.plot(draw.steps(live), live, "o-", color=BLACK, ms=4, label="live run")
    axis.set(xlabel="rollout", ylabel="reward (training)", title=title, ylim=(0, 1))
    draw.legend_beside(axis)
    return figure
