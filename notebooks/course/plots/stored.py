"""Figures of the stored stale runs of chapter 10."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import primitives as draw
from course.plots.style import BLACK, GREY, INK, looks_of
from course.plots.style import colour as colour_of


def colour(label: str) -> str:
    """One colour for an arm in every figure of the two chapters."""
    return colour_of(label, default=GREY)


def accuracies(
    settings: dict[str, dict[str, Sequence[float]]],
    start: float | None = None,
    title: str = "",
) -> Figure:
    """Final accuracy of every seed: one panel per setting, one row per arm."""
    height = 0.36 * max(map(len, settings.values())) + (1.8 if title else 1.4)
    figure, axes = draw.panel_grid(len(settings), (8, height))
    for axis, (setting, runs) in zip(axes, settings.items()):
        rows = {f"{arm}, n = {len(values)}": values for arm, values in runs.items()}
        draw.dots(axis, rows, [shade for shade, _ in looks_of(runs)], what="")
        axis.set(xlim=(-0.02, 1.02), xlabel="held-out accuracy", title=setting)
        if start is not None:
            draw.rule(axis, x=start, colour=INK, dash="--", width=1.2)
            axis.text(start + 0.01, len(rows) - 1.5, "start", va="center")
    if title:
        draw.finding(figure, title)
    draw.caption(figure, draw.DOTS)
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


def panels(
    stored: Mapping[str, Sequence[Sequence[float]]],
    here: Mapping[str, Sequence[Sequence[float]]],
    title: str,
) -> Figure:
    """Reward by rollout, one panel per arm: the stored runs, and those made here."""
    columns = min(3, len(stored))
    size = (8, 2.1 * -(-len(stored) // columns) + 0.9)
    shared = {"sharex": True, "sharey": True}
    figure, axes = draw.panel_grid(len(stored), size, columns, **shared)
    for axis, (label, runs), look in zip(axes, stored.items(), looks_of(stored)):
        draw.band(axis, runs, look[0], label, what="")
        for run in here.get(label, ()):
            axis.plot(draw.steps(run), run, color=BLACK, linewidth=1.3)
        if label in here:
            made = f"black: {len(here[label])} made here"
            axis.text(30, 0.98, made, size=11, ha="right", va="top")
        axis.set(title=f"{label}, n = {len(runs)}", ylim=(0, 1), xlim=(0, 31))
    for i, axis in enumerate(axes):
        if i + columns >= len(axes):
            axis.set_xlabel("rollout")
            axis.xaxis.set_tick_params(labelbottom=True)
        if i % columns == 0:
            axis.set_ylabel("reward")
    draw.finding(figure, title)
    draw.caption(figure, draw.BAND)
    return figure
