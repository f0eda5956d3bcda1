"""Figures of chapter 09: experts that change, ratios, γ, engine mismatch."""

import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import BLACK, BLUE, COLOURS, GREEN, GREY, ORANGE, RED, SKY

RSPO = COLOURS["rspo"]
CYCLE = (BLUE, ORANGE, GREEN, RED, SKY, BLACK)


def drift(
    updates: Sequence[int], changed: dict[str, Sequence[Sequence[float]]], published
) -> Figure:
    """Share of experts that changed, against updates; a line for each seed's run."""
    figure, axis = plt.subplots(figsize=(7.5, 3.3))
    for (label, runs), colour in zip(changed.items(), CYCLE):
        for i, values in enumerate(runs):
            axis.plot(
                updates,
                values,
                color=colour,
                marker="o",
                ms=4,
                alpha=0.8,
                label=None if i else label,
            )
    axis.axhline(published, color=GREY, linestyle=":", label="GSPO paper, one update")
    axis.set(xlabel="updates on one rollout", ylabel="share of experts that changed")
    axis.set(ylim=(0, None), xlim=(0, None))
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    return figure


def changed_or_not(groups: dict[str, Sequence[float]]) -> Figure:
    """How far log-probs moved, as cumulative shares."""
    figure, axis = plt.subplots(figsize=(7, 3.2))
    for (label, values), colour in zip(groups.items(), (BLUE, RED)):
        ordered = sorted(values)
        share = [(i + 1) / len(ordered) for i in range(len(ordered))]
        axis.plot(ordered, share, color=colour, label=label)
    axis.set(xscale="log", xlim=(1e-4, None), ylim=(0, 1))
    axis.set(xlabel="|log-ratio| of a token, nats", ylabel="share of tokens below")
    axis.legend(loc="upper left")
    return figure


def spreads(rows: dict[str, Sequence[float]], xlabel: str) -> Figure:
    """One point a seed, one row a quantity."""
    figure, axis = plt.subplots(figsize=(7.5, 0.45 * len(rows) + 1))
    for row, values in enumerate(rows.values()):
        axis.scatter(values, [row] * len(values), color=BLUE, s=28)
        middle = statistics.median(values)
        axis.plot([middle] * 2, [row - 0.3, row + 0.3], color=BLACK, linewidth=2)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.set(xlim=(0, None), xlabel=xlabel)
    axis.invert_yaxis()
    return figure


def shift(drifts, gammas: dict[str, Sequence[float]], here: float | None = None):
    """γ against drift; the floor is where it goes flat."""
    figure, axis = plt.subplots(figsize=(6, 3.2))
    for (label, values), colour in zip(gammas.items(), (RSPO, GREY, SKY)):
        axis.plot(drifts, values, color=colour, label=label)
    if here is not None:
        axis.axvline(here, color=BLACK, linewidth=0.8, linestyle=":")
    axis.set(xlabel="drift of one of k experts, nats", ylabel="γ", ylim=(0, 1.05))
    axis.legend(loc="lower left")
    return figure


def weights(ratios, panels: dict[str, dict[str, Sequence[float]]]) -> Figure:
    """Gradient weight against the ratio, a panel for each sign of the advantage."""
    figure, axes = plt.subplots(1, len(panels), figsize=(9.5, 3.2), sharey=True)
    styles = ("-", "--", "-.")
    for axis, (title, named) in zip(axes, panels.items(), strict=True):
        for (label, values), colour, style in zip(
            named.items(), (COLOURS["gmpo"], RSPO, BLACK), styles
        ):
            axis.plot(ratios, values, color=colour, linestyle=style, label=label)
        axis.set(title=title, xlabel="ratio r")
    axes[0].set_ylabel("gradient weight w")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    return figure


def mismatch(free: Sequence[float], replayed: Sequence[float], title="") -> Figure:
    """How far the sampler's log-probs are from π_old's, with and without replay."""
    figure, axis = plt.subplots(figsize=(7, 3.2))
    bins = [i / 40 for i in range(-40, 41)]
    named = {"own experts": (free, GREY), "sampler's experts (R3)": (replayed, RSPO)}
    for label, (values, colour) in named.items():
        inside = [min(max(v, -1), 1) for v in values]
        axis.hist(inside, bins, color=colour, alpha=0.6, label=label)
    axis.set(yscale="log", xlabel="log π_old − log π_rollout, nats (ends: beyond)")
    axis.set(ylabel="tokens", title=title)
    axis.legend(loc="upper right")
    return figure
