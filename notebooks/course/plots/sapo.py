"""Figures of chapter 10: gates, what they keep, the stress runs, the vocabulary."""

import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import primitives as draw
from course.plots.stored import colour
from course.plots.style import BLACK, BLUE, GREEN, GREY, RED


def gates(ratios, named: dict[str, tuple[Sequence[float], str]], title="") -> Figure:
    """Gate weight (what is left of r Â ∇log π) against the ratio."""
    figure, axis = plt.subplots(figsize=(8.5, 3.4))
    styles = [(colour(label), "-") for label in named]
    draw.curve_panel(axis, ratios, named, styles, title=title, ylim=(-0.04, 1.1))
    draw.rule(axis, x=1)
    axis.set(xlabel="ratio r", ylabel="gate w")
    draw.legend_beside(axis)
    return figure


def kept(shares: dict[str, dict[str, float]]) -> Figure:
    """Stacked bars: where the gradient coefficient that a gate keeps comes from."""
    figure, axis = plt.subplots(figsize=(8, 3.2))
    draw.stacked(axis, shares, {"near 1": GREY, "coming back": GREEN, "moving on": RED})
    axis.set_xlabel("gradient coefficient kept, as a share of the unclipped total")
    axis.legend(loc="lower right")
    return figure


def intervals(
    runs: dict[str, Sequence[float]], bounds: dict[str, tuple[float, float]]
) -> Figure:
    """Every seed, the mean and its interval; one row per arm."""
    figure, axis = plt.subplots(figsize=(8, 0.36 * len(runs) + 1.1))
    for row, (name, values) in enumerate(runs.items()):
        axis.scatter(values, [row + 0.2] * len(values), color=GREY, s=16)
        axis.plot(bounds[name], [row - 0.1] * 2, color=BLUE, linewidth=3)
        axis.plot(statistics.fmean(values), row - 0.1, "D", color=BLACK, ms=5)
    axis.plot([], [], "D", color=BLACK, ms=5, label="mean")
    axis.plot([], [], color=BLUE, linewidth=3, label="95 % interval")
    axis.plot([], [], "o", color=GREY, ms=4, label="a seed")
    draw.row_labels(axis, runs)
    axis.set(xlim=(-0.02, 1.02), xlabel="held-out accuracy after 30 rollouts")
    draw.legend_beside(axis)
    return figure


def why(tails: dict[str, Sequence[float]], skills: dict[str, Sequence[float]]):
    """Medians over seeds: the lowest log-ratios, and how well careful answers add."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    styles = list(zip(map(colour, tails), ("-", "--", "--", "-", ":")))
    draw.curve_panel(left, None, tails, styles, xlabel="rollout", ylabel="nats")
    left.set_title("lowest 1 % of log-ratios in a rollout")
    draw.curve_panel(right, None, skills, styles, xlabel="rollout", ylim=(0, 1.02))
    right.set_title("accuracy of careful answers")
    draw.legend_beside(right)
    return figure


def asymmetry(runs: dict[str, Sequence[Sequence[float]]]) -> Figure:
    """Final accuracy for τ_neg / τ_pos = ½, 1, 2, one panel per setting."""
    figure, axes = draw.panel_grid(len(runs), (8.5, 3), sharey=True)
    for axis, (setting, arms) in zip(axes, runs.items()):
        draw.dots(axis, dict(zip(("½", "1", "2"), arms)), vertical=True)
        axis.set(title=setting, ylim=(-0.03, 1.03), xlabel="τ_neg / τ_pos")
    axes[0].set_ylabel("held-out accuracy")
    return figure


def vocabulary(sizes: Sequence[int], mass: Sequence[float], each: Sequence[float]):
    """One negative step: mass moved in all, and to one other token."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3))
    left.plot(sizes, mass, color=BLUE, marker="o")
    left.set(title="mass that leaves the token", ylim=(0, 1.2 * max(mass)))
    right.plot(sizes, each, color=RED, marker="o")
    right.set(title="what one other token gains", yscale="log")
    for axis in (left, right):
        axis.set(xscale="log", xlabel="vocabulary size V")
    return figure
