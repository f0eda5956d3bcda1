"""Figures of chapter 10: gates, what they keep, the stress runs, the vocabulary."""

import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from refimpl.plots import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    YELLOW,
)

SAPO = COLOURS["sapo"]
CYCLE = (BLUE, SAPO, RED, GREEN, BLACK, PINK, SKY, ORANGE)


def gates(ratios, named: dict[str, tuple[Sequence[float], str]], title="") -> Figure:
    """Gate weight (what is left of r Â ∇log π) against the ratio."""
    figure, axis = plt.subplots(figsize=(7.5, 3.4))
    for (label, values), colour in zip(named.items(), CYCLE):
        axis.plot(ratios, values, color=colour, label=label)
    axis.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    axis.set(xlabel="ratio r", ylabel="gate w", title=title, ylim=(-0.04, 1.1))
    axis.legend(loc="center right", fontsize=9)
    return figure


def kept(shares: dict[str, dict[str, float]]) -> Figure:
    """Stacked bars: where the gradient weight that a gate keeps comes from."""
    figure, axis = plt.subplots(figsize=(8, 3.2))
    colours = {"near 1": GREY, "coming back": GREEN, "moving on": RED}
    left = [0.0] * len(shares)
    names = list(shares)
    for part, colour in colours.items():
        values = [shares[name][part] for name in names]
        axis.barh(names, values, left=left, color=colour, label=part, height=0.6)
        left = [a + b for a, b in zip(left, values)]
    axis.invert_yaxis()
    axis.set_xlabel("gradient weight kept, as a share of the unclipped total")
    axis.legend(loc="lower right")
    return figure


def stress_table(runs: dict[str, Sequence[float]], title: str) -> Figure:
    """Final accuracy of every seed, one row an arm; the bar is the median."""
    figure, axis = plt.subplots(figsize=(8, 0.36 * len(runs) + 1.1))
    for row, values in enumerate(runs.values()):
        axis.scatter(values, [row] * len(values), color=BLUE, alpha=0.7, s=24)
        middle = statistics.median(values)
        axis.plot([middle] * 2, [row - 0.3, row + 0.3], color=BLACK, linewidth=2)
    axis.axvline(0.34, color=GREEN, linestyle=":", label="warm start")
    axis.set_yticks(range(len(runs)), list(runs))
    axis.set(xlim=(-0.02, 1.02), xlabel="held-out accuracy", title=title)
    axis.invert_yaxis()
    axis.legend(loc="upper right")
    return figure


def over_time(
    runs: dict[str, Sequence[Sequence[float]]], live: Sequence[float], title: str
) -> Figure:
    """Reward by rollout: median and range of the stored seeds, and a run made here."""
    figure, axis = plt.subplots(figsize=(8, 3.4))
    for (label, table), colour in zip(runs.items(), CYCLE):
        columns = list(zip(*table))
        steps = range(1, len(columns) + 1)
        axis.plot(
            steps, [statistics.median(c) for c in columns], color=colour, label=label
        )
        low, high = [min(c) for c in columns], [max(c) for c in columns]
        axis.fill_between(steps, low, high, color=colour, alpha=0.12, linewidth=0)
    axis.plot(
        range(1, len(live) + 1), live, color=YELLOW, marker="o", ms=5, label="live run"
    )
    axis.set(xlabel="rollout", ylabel="reward (training)", title=title, ylim=(0, 1))
    axis.legend(loc="lower left", fontsize=9, ncol=3)
    return figure


def vocabulary(sizes: Sequence[int], mass: Sequence[float], each: Sequence[float]):
    """One negative step: mass moved in all, and to one other token."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3))
    left.plot(sizes, mass, color=BLUE, marker="o")
    left.set(xscale="log", ylim=(0, None), title="mass that leaves the token")
    right.plot(sizes, each, color=RED, marker="o")
    right.set(xscale="log", yscale="log", title="what one other token gains")
    for axis in (left, right):
        axis.set_xlabel("vocabulary size V")
    return figure
