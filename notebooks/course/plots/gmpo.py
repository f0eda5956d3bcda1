"""Figures of chapter 08: wild tokens, one token among T, ranges of log-ratios."""

import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from refimpl.history import History
from course.plots import BLACK, BLUE, COLOURS, GREEN, GREY, ORANGE, RED

ARMS = {"GRPO": BLUE, "GRPO, wide clip": ORANGE, "GMPO": COLOURS["gmpo"]}


def wild_tokens(largest, arithmetic, geometric, rows: dict[str, Sequence[float]]):
    """Left: the means against a response's largest ratio. Right: shares of weight."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4))
    style = {"s": 14, "alpha": 0.6, "linewidths": 0}
    left.scatter(largest, arithmetic, color=BLUE, label="arithmetic mean", **style)
    left.scatter(
        largest, geometric, color=COLOURS["gmpo"], label="geometric mean", **style
    )
    left.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    left.set(xlabel="largest token ratio of the response", title="a response's mean")
    left.set_ylabel("mean of its token ratios")
    left.legend(loc="upper left")
    for (label, shares), colour in zip(rows.items(), (BLUE, COLOURS["gmpo"])):
        ordered = sorted(shares, reverse=True)
        right.plot(range(1, len(ordered) + 1), ordered, color=colour, label=label)
    right.set(
        xlabel="responses, sorted",
        ylabel="largest ratio / mean ratio",
        title="how much the heaviest token outweighs the mean",
        ylim=(0, None),
    )
    right.legend(loc="lower left")
    return figure


def one_among(ratios, weights: dict[str, Sequence[float]], title: str = "") -> Figure:
    """The weight of one token against its own ratio, the others at 1."""
    figure, axis = plt.subplots(figsize=(7, 3.4))
    styles = (("-", BLUE), ("-", BLACK), ("--", COLOURS["gmpo"]), ("-.", RED))
    for (label, values), (dash, colour) in zip(weights.items(), styles):
        axis.plot(ratios, values, linestyle=dash, color=colour, label=label)
    axis.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    axis.set(xlabel="ratio of this token", ylabel="its weight × |o|", title=title)
    axis.legend(loc="upper left")
    return figure


def sign_trap(grpo: Sequence[float], gmpo: Sequence[float]) -> Figure:
    """Two responses and their sum, under both means."""
    figure, axis = plt.subplots(figsize=(6.5, 3))
    places = range(3)
    axis.bar([x - 0.2 for x in places], grpo, 0.38, color=BLUE, label="arithmetic")
    axis.bar(
        [x + 0.2 for x in places],
        gmpo,
        0.38,
        color=COLOURS["gmpo"],
        label="geometric",
    )
    axis.axhline(0, color=BLACK, linewidth=0.8)
    axis.set_xticks(list(places), ["Â = +1\nr = 2, ½", "Â = −1\nr = 1¼, 1¼", "mean J"])
    axis.set_ylabel("objective")
    axis.legend(loc="lower left")
    return figure


def stale_runs(
    runs: dict[str, Sequence[History]], panels: Sequence[tuple[str, str]]
) -> Figure:
    """Median and range over seeds; the first panel is the range of log-ratios."""
    figure, axes = plt.subplots(2, 3, figsize=(10, 5))
    for label, histories in runs.items():
        colour = ARMS[label]
        steps = range(1, len(histories[0]) + 1)
        for name in ("log_ratio/q01", "log_ratio/q99"):
            middle = [statistics.median(x) for x in zip(*(h[name] for h in histories))]
            axes[0, 0].plot(steps, middle, color=colour)
        for axis, (name, title) in zip(axes.flat[1:], panels):
            columns = list(zip(*(h[name] for h in histories)))
            middle = [statistics.median(c) for c in columns]
            axis.plot(steps, middle, color=colour, label=label)
            low, high = [min(c) for c in columns], [max(c) for c in columns]
            axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.set_title(title)
    axes[0, 0].set_title("log-ratio: 1 % and 99 % quantile")
    axes[0, 0].axhline(0, color=GREY, linewidth=0.8, linestyle=":")
    axes[0, 1].legend(loc="lower right", fontsize=9)
    for axis in axes.flat:
        axis.set_xlabel("rollout")
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return figure


def accuracies(runs: dict[str, Sequence[float]], before: float) -> Figure:
    """Held-out accuracy of every seed, one row an arm."""
    figure, axis = plt.subplots(figsize=(7, 2.2))
    for row, (label, values) in enumerate(runs.items()):
        axis.scatter(values, [row] * len(values), color=ARMS[label], zorder=3)
        middle = statistics.median(values)
        axis.plot([middle] * 2, [row - 0.25, row + 0.25], color=BLACK, linewidth=1.5)
    axis.axvline(before, color=GREEN, linestyle=":", label="warm start")
    axis.set_yticks(range(len(runs)), list(runs))
    axis.set(xlim=(0, 1.02), xlabel="held-out accuracy (bar: median)")
    axis.invert_yaxis()
    axis.legend(loc="upper left")
    return figure
