"""Figures of chapter 09: experts that change, ratios, γ, engine mismatch."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import primitives as draw
from course.plots.style import BLACK, BLUE, COLOURS, GREEN, GREY, ORANGE, RED, SKY

GMPO, RSPO = COLOURS["gmpo"], COLOURS["rspo"]


def drift(
    updates: Sequence[int], changed: dict[str, Sequence[Sequence[float]]], published
) -> Figure:
    """Share of experts that changed, against updates; one line per seed."""
    figure, axis = plt.subplots(figsize=(7.5, 3.3))
    cycle = (BLUE, ORANGE, GREEN, RED, SKY, BLACK)
    for (label, runs), colour in zip(changed.items(), cycle):
        for i, values in enumerate(runs):
            style = {"ms": 4, "alpha": 0.8, "label": None if i else label}
            axis.plot(updates, values, "o-", color=colour, **style)
    draw.rule(axis, y=published, width=1.8, label="GSPO paper, one update")
    axis.set(xlabel="updates on one rollout", ylabel="share of experts that changed")
    axis.set(ylim=(0, None), xlim=(0, None))
    draw.legend_beside(axis)
    return figure


def changed_or_not(groups: dict[str, Sequence[float]]) -> Figure:
    """How far log-probs moved, as cumulative shares."""
    figure, axis = plt.subplots(figsize=(7, 3.2))
    for (label, values), colour in zip(groups.items(), (BLUE, RED)):
        share = [(i + 1) / len(values) for i in range(len(values))]
        axis.plot(sorted(values), share, color=colour, label=label)
    axis.set(xscale="log", xlim=(1e-4, None), ylim=(0, 1))
    axis.set(xlabel="|log-ratio| of a token, nats", ylabel="share of tokens below")
    axis.legend(loc="upper left")
    return figure


def spreads(rows: dict[str, Sequence[float]], xlabel: str) -> Figure:
    """One row per quantity, one dot per seed, a bar at the median."""
    figure, axis = plt.subplots(figsize=(7.5, 0.45 * len(rows) + 1))
    draw.dots(axis, rows)
    axis.set(xlim=(0, None), xlabel=xlabel)
    return figure


def shift(drifts, gammas: dict[str, Sequence[float]], here: float | None = None):
    """γ against drift; the floor is where it goes flat."""
    figure, axis = plt.subplots(figsize=(6, 3.2))
    styles = ((RSPO, "-"), (GREY, "-"), (SKY, "-"))
    draw.curve_panel(axis, drifts, gammas, styles, "lower left", ylim=(0, 1.05))
    if here is not None:
        draw.rule(axis, x=here, colour=BLACK)
    axis.set(xlabel="drift of one of k experts, nats", ylabel="γ")
    return figure


def weights(ratios, panels: dict[str, dict[str, Sequence[float]]]) -> Figure:
    """Gradient weight against the ratio, one panel per sign of the advantage."""
    figure, axes = draw.panel_grid(len(panels), (9.5, 3.2), sharey=True)
    styles = ((GMPO, "-"), (RSPO, "--"), (BLACK, "-."))
    for axis, (title, named) in zip(axes, panels.items()):
        draw.curve_panel(axis, ratios, named, styles, title=title, xlabel="ratio r")
    axes[0].set_ylabel("gradient coefficient c")
    draw.legend_beside(axes[-1])
    return figure


def mismatch(free: Sequence[float], replayed: Sequence[float], title="") -> Figure:
    """How far the sampler's log-probs are from π_old's, with and without replay."""
    figure, axis = plt.subplots(figsize=(7, 3.2))
    edges = [i / 40 for i in range(-40, 41)]
    draw.hist(axis, free, edges, GREY, alpha=0.6, label="own experts")
    draw.hist(axis, replayed, edges, RSPO, alpha=0.6, label="sampler's experts (R3)")
    axis.set(yscale="log", xlabel="log π_old − log π_rollout, nats (ends: beyond)")
    axis.set(ylabel="tokens", title=title)
    axis.legend(loc="upper right")
    return figure
