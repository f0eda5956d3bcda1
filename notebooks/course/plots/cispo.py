"""Figures of chapter 07: the fork token, the loss that means nothing, stale runs."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, PercentFormatter

from course.plots import primitives as draw
from course.plots.style import BLACK, BLUE, COLOURS, GREEN, GREY, SKY
from refimpl.history import History

ARMS = {
    "DAPO": (COLOURS["dapo"], "-"),
    "CISPO": (COLOURS["cispo"], "--"),
    "CISPO, low mask": (BLUE, ":"),
}
MARKS = {"DAPO": "o", "CISPO": "^", "CISPO, low mask": "s"}
RATIOS = (0.5, 1, 1.28, 2, 5, 20, 100)


def _updates_axis(axis, count: int, minibatches: int) -> None:
    """Ticks at the first update and at the end of every pass over the rollout."""
    ticks = [1, *range(minibatches, count + 1, minibatches)]
    axis.set_xlabel("update")
    axis.xaxis.set_major_locator(FixedLocator(ticks))


def fork_path(
    paths: Sequence[Sequence[float]],
    own: Sequence[int],
    silent: Sequence[float],
    bound: float,
    minibatches: int = 4,
) -> Figure:
    """Ratio of every good fork token before each update; how many the clip stops.

    `paths[i][k]` is token i before update k + 1. It is in mini-batch `own[i]`, so every
    `minibatches` updates it is its turn. `silent`: of all tokens, the share without a
    gradient.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.5))
    updates = draw.steps(paths[0])
    kinds = {
        "its turn: it learns": (GREEN, "o"),
        "its turn: no gradient": (ARMS["DAPO"][0], "x"),
    }
    learns, stopped = kinds.values()
    for path, turn in zip(paths, own):
        left.plot(updates, path, color=GREY, linewidth=1)
        for k in range(turn, len(path), minibatches):
            colour, mark = stopped if path[k] > bound else learns
            left.plot(k + 1, path[k], mark, color=colour, markersize=6)
    for label, (colour, mark) in kinds.items():
        left.plot([], [], mark, color=colour, label=label)
    draw.rule(left, y=bound, colour=BLACK, dash="--", width=1)
    left.set(yscale="log", title="good fork tokens", ylabel="ratio r")
    draw.plain_ticks(left.yaxis, RATIOS)
    left.legend(loc="upper left", fontsize=9)
    share = [sum(r > bound for r in column) / len(paths) for column in zip(*paths)]
    right.bar(updates, share, color=stopped[0], label="good fork tokens")
    right.plot(updates, silent, "o-", color=BLACK, markersize=3, label="all tokens")
    right.set(ylim=(0, 1.25), title="share without a gradient")
    right.legend(loc="upper left", ncols=2)
    right.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
    right.yaxis.set_major_formatter(PercentFormatter(1))
    for axis in (left, right):
        _updates_axis(axis, len(updates), minibatches)
    return figure


def fork_shares(
    panels: dict[str, dict[str, Sequence[Sequence[float]]]], minibatches: int = 4
) -> Figure:
    """One panel per quantity, one colour per method; seeds thin, their median thick."""
    figure, axes = draw.panel_grid(len(panels), (3.3 * len(panels), 3.2))
    for axis, (title, arms) in zip(axes, panels.items()):
        for label, seeds in arms.items():
            colour, dash = ARMS[label]
            draw.strands(axis, seeds, colour, label, dash)
            _updates_axis(axis, len(seeds[0]), minibatches)
        axis.set_title(title)
    axes[0].set_yscale("log")
    draw.plain_ticks(axes[0].yaxis, RATIOS)
    for axis in axes[1:]:
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
        axis.set_ylim(bottom=0)
    axes[0].legend(loc="upper left")
    return figure


def loss_value(chances, values: dict[str, Sequence[float]], weights) -> Figure:
    """A good token at 1 % as it rises: its loss (left), its coefficient (right)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.3))
    for axis, lines in ((left, values), (right, weights)):
        styles = [ARMS[label] for label in lines]
        draw.curve_panel(axis, chances, lines, styles, xscale="log")
        draw.plain_ticks(axis.xaxis, (0.01, 0.05, 0.1, 0.37, 1))
        axis.set_xlabel("probability π of the token now")
        draw.rule(axis, x=0.01)
    left.set(title="loss of one good token", ylabel="loss")
    right.set(title="its gradient coefficient", ylabel="w")
    right.legend(loc="upper left")
    return figure


def weight(lines: dict[str, tuple[Sequence[float], Sequence[float]]], title: str = ""):
    """Gradient weight against the ratio, one sign."""
    figure, axis = plt.subplots(figsize=(7, 3.2))
    styles = ((GREY, ":"), ARMS["DAPO"], ARMS["CISPO"])
    for (label, (r, w)), style in zip(lines.items(), styles):
        draw.curve_panel(axis, r, {label: w}, [style], title=title, ylim=(-0.3, 8))
    draw.rule(axis, x=1)
    axis.set(xlabel="ratio r", ylabel="gradient coefficient c")
    axis.legend(loc="upper left")
    return figure


def fork_dots(curves: dict[str, tuple], dots: dict[str, Sequence[float]], title: str):
    """The weight curves of both methods, with fork tokens as dots at their ratios."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 3), sharey=True)
    for axis, (label, (r, w)) in zip(axes, curves.items()):
        axis.plot(r, w, color=ARMS[label][0])
        heights = [w[draw.nearest(r, x)] for x in dots[label]]
        held = [min(x, r[-1]) for x in dots[label]]
        axis.plot(held, heights, MARKS[label], color=BLACK, markersize=7, alpha=0.6)
        live = sum(h > 0 for h in heights)
        axis.set(xscale="log", xlabel="ratio r of the fork token (up to 100)")
        axis.set_title(f"{label}, {title}: {live} of {len(heights)} have a gradient")
        axis.set_ylim(-0.4, 6)
        draw.plain_ticks(axis.xaxis, (0.5, 1, 2, 5, 20, 100))
    axes[0].set_ylabel("gradient coefficient c")
    return figure


def runs(
    rows: dict[str, dict[str, Sequence[History]]],
    panels: Sequence[tuple[str, str]],
) -> Figure:
    """One row per setting, one column per metric: seeds thin, their median thick."""
    count = len(rows) * len(panels)
    figure, axes = draw.panel_grid(count, (10, 2.6 * len(rows)), len(panels))
    for i, (setting, arms) in enumerate(rows.items()):
        titled = [(name, f"{setting}: {title}") for name, title in panels]
        row = axes[i * len(panels) : (i + 1) * len(panels)]
        draw.metric_panels(
            row, arms, titled, [ARMS[label] for label in arms], draw.strands
        )
    for axis in axes:
        axis.title.set_fontsize(10)
    for axis in axes[: -len(panels)]:
        axis.set_xlabel("")
    widest = max(axes[:: len(panels)], key=lambda axis: len(axis.lines))
    draw.legend_outside(figure, widest, 3)
    return figure


def speeds(rows: dict[str, Sequence[float]], never: float = 1.5) -> Figure:
    """CISPO's time over DAPO's: one row per measure, one dot per seed.

    A time that is `inf` stands at `never`.
    """
    figure, axis = plt.subplots(figsize=(7, 2.4))
    colour, _ = ARMS["CISPO"]
    for row, ratios in enumerate(rows.values()):
        for x in ratios:
            mark = ">" if x > never else MARKS["CISPO"]
            axis.plot(min(x, never), row, mark, color=colour, alpha=0.8, markersize=8)
    draw.rule(axis, x=1, dash="-", width=1, label="as long as DAPO")
    draw.rule(axis, x=0.5, colour=BLACK, dash="--", width=1, label="half as long")
    axis.plot([], [], ">", color=colour, label="later, or never in the run")
    axis.set(xlim=(0, never + 0.05), xlabel="CISPO's time to DAPO's best / DAPO's time")
    draw.row_labels(axis, rows)
    draw.legend_outside(figure, axis, 3)
    return figure


def ends(groups: dict[str, dict[str, Sequence[float]]], before: Sequence[float]):
    """Held-out accuracy of every seed at the end; a bar at the median."""
    figure, axes = draw.panel_grid(len(groups), (3.3 * len(groups), 2.2), sharey=True)
    for axis, (title, arms), start in zip(axes, groups.items(), before):
        colours = [ARMS[label][0] for label in arms]
        draw.dots(axis, arms, colours, [MARKS[label] for label in arms])
        draw.rule(axis, x=start, colour=SKY, width=1.8)
        axis.set(title=title, xlim=(-0.03, 1.03), xlabel="held-out accuracy")
    return figure
