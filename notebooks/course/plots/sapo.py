"""Figures of chapter 10: gates, what they keep, the stress runs, the vocabulary."""

import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    RED,
)
from course.plots.stored import colour


def gates(ratios, named: dict[str, tuple[Sequence[float], str]], title="") -> Figure:
    """Gate weight (what is left of r Â ∇log π) against the ratio."""
    figure, axis = plt.subplots(figsize=(8.5, 3.4))
    for label, values in named.items():
        axis.plot(ratios, values, color=colour(label), label=label)
    axis.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    axis.set(xlabel="ratio r", ylabel="gate w", title=title, ylim=(-0.04, 1.1))
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    return figure


def kept(shares: dict[str, dict[str, float]]) -> Figure:
    """Stacked bars: where the gradient weight that a gate keeps comes from."""
    figure, axis = plt.subplots(figsize=(8, 3.2))
    colours = {"near 1": GREY, "coming back": GREEN, "moving on": RED}
    left = [0.0] * len(shares)
    names = list(shares)
    for part, shade in colours.items():
        values = [shares[name][part] for name in names]
        axis.barh(names, values, left=left, color=shade, label=part, height=0.6)
        left = [a + b for a, b in zip(left, values)]
    axis.invert_yaxis()
    axis.set_xlabel("gradient weight kept, as a share of the unclipped total")
    axis.legend(loc="lower right")
    return figure


def intervals(
    runs: dict[str, Sequence[float]], bounds: dict[str, tuple[float, float]]
) -> Figure:
    """Every seed, the mean and its interval; one row an arm."""
    figure, axis = plt.subplots(figsize=(8, 0.36 * len(runs) + 1.1))
    for row, (name, values) in enumerate(runs.items()):
        axis.scatter(values, [row + 0.2] * len(values), color=GREY, s=16)
        axis.plot(bounds[name], [row - 0.1] * 2, color=BLUE, linewidth=3)
        axis.plot(statistics.fmean(values), row - 0.1, "D", color=BLACK, ms=5)
    axis.plot([], [], "D", color=BLACK, ms=5, label="mean")
    axis.plot([], [], color=BLUE, linewidth=3, label="95 % interval")
    axis.plot([], [], "o", color=GREY, ms=4, label="a seed")
    axis.set_yticks(range(len(runs)), list(runs))
    axis.set(xlim=(-0.02, 1.02), xlabel="held-out accuracy after 30 rollouts")
    axis.invert_yaxis()
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    return figure


def why(tails: dict[str, Sequence[float]], skills: dict[str, Sequence[float]]):
    """Medians over seeds: the lowest log-ratios, and how well careful answers add."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6))
    titles = ("lowest 1 % of log-ratios in a rollout", "accuracy of careful answers")
    styles = ("-", "--", "--", "-", ":")
    for axis, series, title in zip(axes, (tails, skills), titles, strict=True):
        for (arm, values), style in zip(series.items(), styles):
            steps = range(1, len(values) + 1)
            axis.plot(steps, values, color=colour(arm), linestyle=style, label=arm)
        axis.set(title=title, xlabel="rollout")
    axes[0].set_ylabel("nats")
    axes[1].set_ylim(0, 1.02)
    axes[1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    return figure


def asymmetry(runs: dict[str, Sequence[Sequence[float]]]) -> Figure:
    """Final accuracy for τ_neg / τ_pos = ½, 1, 2, one panel a setting."""
    figure, axes = plt.subplots(1, len(runs), figsize=(8.5, 3), sharey=True)
    for axis, (setting, arms) in zip(axes, runs.items(), strict=True):
        for x, values in enumerate(arms):
            axis.scatter([x] * len(values), values, color=BLUE, alpha=0.7, s=24)
            middle = statistics.median(values)
            axis.plot([x - 0.25, x + 0.25], [middle] * 2, color=BLACK, linewidth=2)
        axis.set_xticks(range(len(arms)), ["½", "1", "2"])
        axis.set(title=setting, ylim=(-0.03, 1.03), xlim=(-0.5, len(arms) - 0.5))
        axis.set_xlabel("τ_neg / τ_pos")
    axes[0].set_ylabel("held-out accuracy")
    return figure


def vocabulary(sizes: Sequence[int], mass: Sequence[float], each: Sequence[float]):
    """One negative step: mass moved in all, and to one other token."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3))
    left.plot(sizes, mass, color=BLUE, marker="o")
    left.set(
        xscale="log", ylim=(0, 1.2 * max(mass)), title="mass that leaves the token"
    )
    right.plot(sizes, each, color=RED, marker="o")
    right.set(xscale="log", yscale="log", title="what one other token gains")
    for axis in (left, right):
        axis.set_xlabel("vocabulary size V")
    return figure
