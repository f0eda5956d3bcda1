"""Figures of chapter 06: head-room under the clip, dead groups, lengths, the parts."""

import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from course.plots import primitives as draw
from course.plots.style import (
    BLACK,
    BLUE,
    COLOURS,
    DASHES,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    RIGHT,
    SKY,
    WRONG,
)

WIDTHS = (BLUE, ORANGE, RED, BLACK)
"""ε_high from narrow to none, in every figure of the chapter."""
STYLES = tuple(zip(WIDTHS, DASHES))


def headroom(
    start: Sequence[float],
    reach: dict[str, Sequence[float]],
    climbs: dict[str, Sequence[float]],
) -> Figure:
    """How far one rollout may lift a token, and how a rare one climbs."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    room = {k: [b - a for a, b in zip(start, end)] for k, end in reach.items()}
    draw.curve_panel(left, start, room, STYLES, "upper left")
    left.set(title="room to rise in one rollout", ylabel="highest π − π_old")
    left.set_xlabel("probability π_old of a token")
    left.set_ylim(bottom=0)
    for (label, path), colour, mark in zip(climbs.items(), WIDTHS, ("o-", "s-", "^-")):
        right.plot(range(len(path)), path, mark, color=colour, ms=4, label=label)
    draw.rule(right, y=0.5, width=1)
    right.set(title="a token at 1 %, always good", xlabel="rollout", ylim=(0, 1.02))
    right.set_ylabel("its probability")
    return figure


def one_token(p: float, epsilon: float, grid: Sequence[float], weight) -> Figure:
    """The gradient coefficient of a good token against its probability, from `p` on."""
    figure, axis = plt.subplots(figsize=(7, 2.8))
    top = min(1.0, p * (1 + epsilon))
    axis.axvspan(p, top, color=GREEN, alpha=0.2, linewidth=0)
    axis.plot(grid, weight, color=COLOURS["dapo"])
    draw.rule(axis, x=p, colour=BLACK, dash="-", width=1)
    axis.annotate("π_old ", (p, 0.08), ha="right" if p > 0.15 else "left")
    stopped = f"stops at {top:.3f}" if p * (1 + epsilon) < 1 else "never clipped"
    axis.set_title(f"from {p:.3f}: {stopped}  (room {top - p:.3f})")
    axis.set_xlabel("probability of the token now (its advantage is positive)")
    axis.set(ylabel="gradient coefficient", xlim=(0, 1), ylim=(0, 2.5))
    return figure


def up_clipped(clipped: Sequence[float], rising: Sequence[float]) -> Figure:
    """π_old of the tokens that the upper clip stops, beside all good tokens."""
    figure, axis = plt.subplots(figsize=(7.5, 3))
    edges = [i / 20 for i in range(21)]
    for values, colour, label in (
        (rising, GREY, "all tokens with Â > 0"),
        (clipped, RED, "those with r > 1.2: clipped"),
    ):
        draw.hist(axis, values, edges, colour, len(values), alpha=0.6, label=label)
    mean = statistics.fmean(clipped)
    draw.rule(axis, x=mean, colour=RED, dash="--", width=1.8)
    draw.rule(axis, x=1 / 1.2, colour=BLACK, width=1.8)
    axis.text(1 / 1.2 - 0.01, 0.5, "1/1.2: cannot\nbe clipped above", ha="right")
    axis.text(mean + 0.01, 0.75, "mean,\nclipped", color=RED)
    axis.set(xlabel="π_old of the token", ylabel="share", ylim=(0, 1))
    axis.legend(loc="upper center")
    return figure


def price(curves: dict[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Responses to sample for one live group, against how often a prompt is solved."""
    figure, axis = plt.subplots(figsize=(7, 3))
    for (label, (p, cost)), style in zip(curves.items(), STYLES):
        draw.curve_panel(axis, p, {label: cost}, [style])
    axis.set(yscale="log", xlabel="a prompt is solved with probability p")
    axis.set_ylabel("responses per live group")
    axis.set_title("what one group with a gradient costs")
    axis.legend(loc="upper center")
    return figure


def group_and_price(values: Sequence[float], right: int, p, cost) -> Figure:
    """The advantages of one group, and where it stands on the curve of `price`."""
    figure, (left, axis) = plt.subplots(1, 2, figsize=(9, 2.9))
    size = len(values)
    kept = 0 < right < size
    draw.advantage_bars(left, values, [i < right for i in range(size)])
    left.set(title=f"{right} of {size} right: {'kept' if kept else 'thrown away'}")
    left.set(ylabel="advantage", ylim=(-4.5, 4.5))
    left.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axis.plot(p, cost, color=BLUE)
    if kept:
        here = draw.nearest(p, right / size)
        axis.plot(p[here], cost[here], "o", color=RED, markersize=8)
    axis.set(yscale="log", xlabel="solved with probability p", ylim=(1, 1000))
    axis.set_title(f"responses per live group, G = {size}")
    return figure


def normalisers(lengths: Sequence[int], weights: dict[str, Sequence[float]]) -> Figure:
    """Weight of one token, and of the whole response, under each normaliser."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.3))
    whole = {k: [n * w for n, w in zip(lengths, v)] for k, v in weights.items()}
    panels = {"one token": weights, "the whole response": whole}
    for axis, (name, bars) in zip(axes, panels.items()):
        draw.grouped_bars(axis, bars, (BLUE, ORANGE, PINK, SKY), lengths)
        axis.set(title=f"weight of {name}", xlabel="response length (tokens)")
        draw.rule(axis, x=1.5)
    draw.legend_outside(figure, axes[0], 4, "lower")
    return figure


def ramp(
    lengths: Sequence[float],
    named: dict[str, Sequence[float]],
    start: float,
    limit: float,
    right: Sequence[float] = (),
    wrong: Sequence[float] = (),
) -> Figure:
    """Punishments against length; below, how long right and wrong responses are."""
    rows = 2 if right else 1
    figure, axes = draw.panel_grid(rows, (7.5, 2.4 * rows + 0.4), 1, sharex=True)
    styles = ((RED, "-"), (GREY, "--"))
    draw.curve_panel(axes[0], lengths, named, styles, ylim=(-1.1, 0.3))
    axes[0].text(limit, 0.1, " L_max", va="bottom")
    axes[0].text((start + limit) / 2, 0.1, "ramp", va="bottom", ha="center")
    axes[0].set_ylabel("added to the reward")
    if len(named) > 1:
        axes[0].legend(loc="lower left")
    if right:
        edges = range(-1, int(limit) + 2, 2)  # the limit is in the last bin
        axes[1].hist(right, edges, color=RIGHT, alpha=0.65, label="right")
        axes[1].hist(wrong, edges, color=WRONG, alpha=0.65, label="wrong")
        axes[1].set_ylabel("responses")
        axes[1].legend(loc="upper center")
    for axis in axes:
        axis.axvspan(start, limit, color=ORANGE, alpha=0.15, linewidth=0)
        draw.rule(axis, x=limit, colour=BLACK, width=1)
    axes[-1].set_xlabel("length of the response (tokens)")
    return figure


def widths(runs: dict[str, Sequence], panels: Sequence[tuple[str, str]]) -> Figure:
    """Columns of histories for several ε_high; last, entropy against reward."""
    figure, (*axes, last) = draw.panel_grid(len(panels) + 1, (11, 3.1))
    draw.metric_panels(axes, runs, panels, STYLES)
    axes[0].legend(loc="best", fontsize=9)
    for (label, histories), colour, mark in zip(runs.items(), WIDTHS, "osx^"):
        style = {"color": colour, "alpha": 0.8, "markersize": 4}
        for i, h in enumerate(histories):
            name = None if i else label
            last.plot(h["reward"], h["entropy"], mark, label=name, **style)
    last.legend(loc="lower left", fontsize=9)
    last.set(title="entropy at equal reward", xlabel="reward (training)")
    last.set_ylim(bottom=0)
    return figure


def columns(
    runs: dict[str, Sequence], panels: Sequence[tuple[str, str]], legend: str
) -> Figure:
    """Columns of histories: median and range, the legend where there is room."""
    figure, axes = draw.panel_grid(len(panels), (9.6, 2.8))
    draw.metric_panels(axes, runs, panels, zip((BLUE, RED, GREEN), DASHES), ticks=5)
    axes[0].legend(loc=legend, fontsize=9)
    return figure


def by_updates_and_samples(runs: dict[str, Sequence], updates: int) -> Figure:
    """Reward against updates, and against the responses that were sampled."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.1), sharey=True)
    for (label, histories), colour in zip(runs.items(), (ORANGE, BLUE, BLACK)):
        rewards = [h["reward"] for h in histories]
        samples, _, _ = draw.summary([h["num_samples"] for h in histories])
        # A rollout's reward is that of the policy before its updates.
        taken = [updates * i for i in range(len(samples))]
        for axis, x in ((left, taken), (right, [0, *samples[:-1]])):
            draw.band(axis, rewards, colour, label, x=x, marker=".")
    left.set(xlabel="updates", ylabel="reward (training)", ylim=(0, 1.02))
    left.set_title("against updates")
    left.legend(loc="upper left")
    right.set(xlabel="responses sampled", title="against samples")
    return figure


def parts(named: dict[str, Sequence[float]], title: str, base: str) -> Figure:
    """One row per variant: one dot per seed, a bar at the median."""
    figure, axis = plt.subplots(figsize=(7.5, 0.38 * len(named) + 1.1))
    draw.dots(axis, named)
    axis.axvspan(min(named[base]), max(named[base]), color=ORANGE, alpha=0.15, lw=0)
    axis.set_xlabel(title)
    axis.set_title(f"dot: a seed, bar: median, band: range of {base}")
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure
