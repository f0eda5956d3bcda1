"""Figures of chapter 07: the fork token, the loss that means nothing, stale runs."""

import math
import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    MaxNLocator,
    PercentFormatter,
    StrMethodFormatter,
)

from refimpl.history import History
from course.plots import BLACK, BLUE, COLOURS, GREEN, GREY, SKY

ARMS = {
    "DAPO": COLOURS["dapo"],
    "CISPO": COLOURS["cispo"],
    "CISPO, low mask": BLUE,
}
DASHES = {"DAPO": "-", "CISPO": "--", "CISPO, low mask": ":"}
MARKS = {"DAPO": "o", "CISPO": "^", "CISPO, low mask": "s"}


def fork_path(
    paths: Sequence[Sequence[float]],
    own: Sequence[int],
    silent: Sequence[float],
    bound: float,
) -> Figure:
    """Ratio of every good fork token before each update; how many the clip stops.

    `paths[i][k]` is token i before update k + 1; its own turns come at the updates
    k with k % 4 == own[i]. `silent`: of all tokens, the share without a gradient.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.5))
    updates = range(1, len(paths[0]) + 1)
    for path, turn in zip(paths, own):
        left.plot(updates, path, color=GREY, linewidth=1)
        for k, r in enumerate(path):
            if k % 4 == turn:
                colour, mark = (ARMS["DAPO"], "x") if r > bound else (GREEN, "o")
                left.plot(k + 1, r, mark, color=colour, markersize=6)
    left.plot([], [], "o", color=GREEN, label="its turn: it learns")
    left.plot([], [], "x", color=ARMS["DAPO"], label="its turn: no gradient")
    left.axhline(bound, color=BLACK, linestyle="--", linewidth=1)
    left.set(yscale="log", xlabel="update", title="good fork tokens")
    left.set_ylabel("ratio r")
    _plain_ratios(left)
    left.legend(loc="upper left", fontsize=9)
    stopped = [
        sum(path[k] > bound for path in paths) / len(paths) for k in range(len(updates))
    ]
    right.bar(updates, stopped, color=ARMS["DAPO"], label="good fork tokens")
    right.plot(updates, silent, "o-", color=BLACK, markersize=3, label="all tokens")
    right.set(xlabel="update", ylim=(0, 1.25), title="share without a gradient")
    right.legend(loc="upper left", ncols=2)
    right.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    right.yaxis.set_major_formatter(PercentFormatter(1))
    for axis in (left, right):
        axis.xaxis.set_major_locator(FixedLocator([1, 4, 8, 12, 16]))
    return figure


def fork_shares(panels: dict[str, dict[str, Sequence[Sequence[float]]]]) -> Figure:
    """One panel a quantity, one colour a method, one thin line a seed, median thick."""
    figure, axes = plt.subplots(1, len(panels), figsize=(3.3 * len(panels), 3.2))
    for axis, (title, arms) in zip(axes, panels.items()):
        for label, seeds in arms.items():
            updates = range(1, len(seeds[0]) + 1)
            for line in seeds:
                axis.plot(updates, line, color=ARMS[label], linewidth=0.8, alpha=0.6)
            middle = [statistics.median(c) for c in zip(*seeds)]
            axis.plot(
                updates, middle, DASHES[label], color=ARMS[label], label=label, lw=2.4
            )
        axis.set(title=title, xlabel="update")
        axis.xaxis.set_major_locator(FixedLocator([1, 4, 8, 12, 16]))
    axes[0].set_yscale("log")
    _plain_ratios(axes[0])
    for axis in axes[1:]:
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
        axis.set_ylim(bottom=0)
    axes[0].legend(loc="upper left")
    return figure


def loss_value(chances, values: dict[str, Sequence[float]], weights) -> Figure:
    """Loss (left) and gradient weight (right) of a good token at 1 % as it rises."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.3))
    for axis, lines in ((left, values), (right, weights)):
        for label, line in lines.items():
            style = {"color": ARMS[label], "linestyle": DASHES[label]}
            axis.plot(chances, line, label=label, **style)
        axis.set(xscale="log", xlabel="probability π of the token now")
        axis.xaxis.set_major_locator(FixedLocator([0.01, 0.05, 0.1, 0.37, 1]))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.xaxis.set_minor_locator(FixedLocator([]))
        axis.axvline(0.01, color=GREY, linewidth=0.8, linestyle=":")
    left.set(title="loss of one good token", ylabel="loss")
    right.set(title="its gradient weight", ylabel="w")
    right.legend(loc="upper left")
    return figure


def weight(lines: dict[str, tuple[Sequence[float], Sequence[float]]], title: str = ""):
    """Gradient weight against the ratio, one sign."""
    figure, axis = plt.subplots(figsize=(7, 3.2))
    colours = (GREY, ARMS["DAPO"], ARMS["CISPO"])
    for (label, (r, w)), colour, dash in zip(lines.items(), colours, (":", "-", "--")):
        axis.plot(r, w, dash, color=colour, label=label)
    axis.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    axis.set(xlabel="ratio r", ylabel="gradient weight w", title=title, ylim=(-0.3, 8))
    axis.legend(loc="upper left")
    return figure


def fork_dots(curves: dict[str, tuple], dots: dict[str, Sequence[float]], title: str):
    """The weight curves of both methods, with fork tokens as dots at their ratios."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3), sharey=True)
    for axis, (label, (r, w)) in zip(axes, curves.items()):
        axis.plot(r, w, color=ARMS[label])
        here = [min(range(len(r)), key=lambda i: abs(r[i] - x)) for x in dots[label]]
        heights = [w[i] for i in here]
        held = [min(x, r[-1]) for x in dots[label]]
        axis.plot(held, heights, MARKS[label], color=BLACK, markersize=7, alpha=0.6)
        live = sum(h > 0 for h in heights)
        axis.set(xscale="log", xlabel="ratio r of the fork token (up to 100)")
        axis.set_title(f"{label}, {title}: {live} of {len(heights)} have a gradient")
        axis.set_ylim(-0.4, 6)
        axis.xaxis.set_major_locator(FixedLocator([0.5, 1, 2, 5, 20, 100]))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.xaxis.set_minor_locator(FixedLocator([]))
    axes[0].set_ylabel("gradient weight w")
    return figure


def runs(
    rows: dict[str, dict[str, Sequence[History]]],
    panels: Sequence[tuple[str, str]],
) -> Figure:
    """One row a setting, one column a metric: every seed thin, the median thick."""
    figure, axes = plt.subplots(
        len(rows),
        len(panels),
        figsize=(10, 2.6 * len(rows)),
        squeeze=False,
    )
    for line, (setting, arms) in zip(axes, rows.items()):
        for axis, (name, title) in zip(line, panels):
            for label, histories in arms.items():
                steps = range(1, len(histories[0]) + 1)
                table = [h[name] for h in histories]
                for one in table:
                    axis.plot(steps, one, color=ARMS[label], lw=0.8, alpha=0.5)
                middle = [_middle(c) for c in zip(*table)]
                axis.plot(steps, middle, DASHES[label], color=ARMS[label], label=label)
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            axis.set_title(f"{setting}: {title}", fontsize=10)
            if name == "ratio/max_deviation":
                axis.set_yscale("log")
            else:
                axis.set_ylim(bottom=0)
    for axis in axes[-1]:
        axis.set_xlabel("rollout")
    widest = max(axes[:, 0], key=lambda axis: len(axis.lines))
    figure.legend(
        *widest.get_legend_handles_labels(), loc="outside upper center", ncols=3
    )
    return figure


def speeds(rows: dict[str, Sequence[float]], never: float = 1.5) -> Figure:
    """CISPO's time over DAPO's, a row a measure, a dot a seed; `inf` at `never`."""
    figure, axis = plt.subplots(figsize=(7, 2.4))
    for row, ratios in enumerate(rows.values()):
        for x in ratios:
            mark = ">" if x > never else MARKS["CISPO"]
            axis.plot(
                min(x, never), row, mark, color=ARMS["CISPO"], alpha=0.8, markersize=8
            )
    axis.axvline(1, color=GREY, linewidth=1, label="as long as DAPO")
    axis.axvline(0.5, color=BLACK, linestyle="--", linewidth=1, label="half as long")
    axis.plot([], [], ">", color=ARMS["CISPO"], label="later, or never in the run")
    axis.set(xlim=(0, never + 0.05), xlabel="CISPO's time to DAPO's best / DAPO's time")
    axis.set_yticks(range(len(rows)), list(rows))
    axis.set_ylim(len(rows) - 0.5, -0.5)
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def ends(groups: dict[str, dict[str, Sequence[float]]], before: Sequence[float]):
    """Held-out accuracy of every seed at the end; a bar at the median."""
    figure, axes = plt.subplots(
        1, len(groups), figsize=(3.3 * len(groups), 2.2), sharey=True
    )
    for axis, (title, arms), start in zip(axes, groups.items(), before):
        for row, (label, values) in enumerate(arms.items()):
            axis.plot(
                values,
                [row] * len(values),
                MARKS[label],
                color=ARMS[label],
                alpha=0.8,
            )
            axis.plot([statistics.median(values)] * 2, [row - 0.3, row + 0.3], BLACK)
        axis.axvline(start, color=SKY, linestyle=":")
        axis.set(title=title, xlim=(-0.03, 1.03), xlabel="held-out accuracy")
        axis.set_yticks(range(len(arms)), list(arms))
        axis.set_ylim(len(arms) - 0.5, -0.5)
    return figure


def _middle(column: Sequence[float]) -> float:
    """The median of what exists; NaN if nothing does."""
    known = [x for x in column if not math.isnan(x)]
    return statistics.median(known) if known else math.nan


def _plain_ratios(axis) -> None:
    axis.yaxis.set_major_locator(FixedLocator([0.5, 1, 1.28, 2, 5, 20, 100]))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_locator(FixedLocator([]))
