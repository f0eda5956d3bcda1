"""Figures of chapter 06: head-room under the clip, dead groups, lengths, the parts."""

import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from course.plots import BLACK, BLUE, COLOURS, GREEN, GREY, ORANGE, PINK, RED, SKY

RIGHT, WRONG = GREEN, ORANGE
WIDTHS = (BLUE, ORANGE, RED, BLACK)
"""ε_high from narrow to none, in every figure of the chapter."""
DASHES = ("-", "--", "-.", ":")


def headroom(
    start: Sequence[float],
    reach: dict[str, Sequence[float]],
    climbs: dict[str, Sequence[float]],
) -> Figure:
    """How far one rollout may lift a token, and how a rare one climbs."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    for (label, end), colour, dash in zip(reach.items(), WIDTHS, DASHES):
        room = [b - a for a, b in zip(start, end)]
        left.plot(start, room, dash, color=colour, label=label)
    left.set(title="room to rise in one rollout", xlabel="probability π_old of a token")
    left.set_ylabel("highest π − π_old")
    left.set_ylim(bottom=0)
    left.legend(loc="upper left")
    for (label, path), colour, mark in zip(climbs.items(), WIDTHS, ("o", "s", "^")):
        style = {"color": colour, "marker": mark, "markersize": 4, "label": label}
        right.plot(range(len(path)), path, **style)
    right.axhline(0.5, color=GREY, linestyle=":", linewidth=1)
    right.set(title="a token at 1 %, always good", xlabel="rollout", ylim=(0, 1.02))
    right.set_ylabel("its probability")
    return figure


def one_token(p: float, epsilon: float, grid: Sequence[float], weight) -> Figure:
    """The gradient weight of a good token against its probability, from `p` on."""
    figure, axis = plt.subplots(figsize=(7, 2.8))
    top = min(1.0, p * (1 + epsilon))
    axis.axvspan(p, top, color=GREEN, alpha=0.2, linewidth=0)
    axis.plot(grid, weight, color=COLOURS["dapo"])
    axis.axvline(p, color=BLACK, linewidth=1)
    axis.annotate("π_old ", (p, 0.08), ha="right" if p > 0.15 else "left")
    stopped = f"stops at {top:.3f}" if p * (1 + epsilon) < 1 else "never clipped"
    axis.set(
        title=f"from {p:.3f}: {stopped}  (room {top - p:.3f})",
        xlabel="probability of the token now (its advantage is positive)",
        ylabel="gradient weight",
        xlim=(0, 1),
        ylim=(0, 2.5),
    )
    return figure


def up_clipped(clipped: Sequence[float], rising: Sequence[float]) -> Figure:
    """π_old of the tokens that the upper clip stops, beside all good tokens."""
    figure, axis = plt.subplots(figsize=(7.5, 3))
    edges = [i / 20 for i in range(21)]
    for values, colour, label in (
        (rising, GREY, "all tokens with Â > 0"),
        (clipped, RED, "those with r > 1.2: clipped"),
    ):
        share = [1 / len(values)] * len(values)
        axis.hist(values, edges, weights=share, color=colour, alpha=0.6, label=label)
    axis.axvline(statistics.fmean(clipped), color=RED, linestyle="--")
    axis.axvline(1 / 1.2, color=BLACK, linestyle=":")
    axis.text(1 / 1.2 - 0.01, 0.5, "1/1.2: cannot\nbe clipped above", ha="right")
    axis.text(statistics.fmean(clipped) + 0.01, 0.75, "mean,\nclipped", color=RED)
    axis.set(xlabel="π_old of the token", ylabel="share", ylim=(0, 1))
    axis.legend(loc="upper center")
    return figure


def price(curves: dict[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Responses to sample for one live group, against how often a prompt is solved."""
    figure, axis = plt.subplots(figsize=(7, 3))
    for (label, (p, cost)), colour, dash in zip(curves.items(), WIDTHS, DASHES):
        axis.plot(p, cost, dash, color=colour, label=label)
    axis.set(yscale="log", xlabel="a prompt is solved with probability p")
    axis.set_ylabel("responses per live group")
    axis.set_title("what one group with a gradient costs")
    axis.legend(loc="upper center")
    return figure


def group_and_price(values: Sequence[float], right: int, p, cost) -> Figure:
    """The advantages of one group, and where it stands on the curve of `price`."""
    figure, (left, axis) = plt.subplots(1, 2, figsize=(9, 2.9))
    size = len(values)
    colours = [RIGHT if i < right else WRONG for i in range(size)]
    left.bar(range(1, size + 1), values, color=colours)
    left.axhline(0, color=GREY, linewidth=1)
    kept = 0 < right < size
    left.set(title=f"{right} of {size} right: {'kept' if kept else 'thrown away'}")
    left.set(xlabel="response", ylabel="advantage", ylim=(-4.5, 4.5))
    left.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    if not kept:
        left.text((size + 1) / 2, 0.5, "every Â is 0", ha="center", color=RED)
    axis.plot(p, cost, color=BLUE)
    if kept:
        here = min(range(len(p)), key=lambda i: abs(p[i] - right / size))
        axis.plot(p[here], cost[here], "o", color=RED, markersize=8)
    axis.set(yscale="log", xlabel="solved with probability p", ylim=(1, 1000))
    axis.set_title(f"responses per live group, G = {size}")
    return figure


def normalisers(lengths: Sequence[int], weights: dict[str, Sequence[float]]) -> Figure:
    """Weight of one token, and of the whole response, under each aggregation."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.3))
    width = 0.8 / len(weights)
    colours = (BLUE, ORANGE, PINK, SKY)
    for i, ((label, per_token), colour) in enumerate(zip(weights.items(), colours)):
        where = [j - 0.4 + (i + 0.5) * width for j in range(len(lengths))]
        whole = [n * w for n, w in zip(lengths, per_token)]
        axes[0].bar(where, per_token, width, color=colour, label=label)
        axes[1].bar(where, whole, width, color=colour)
    for axis, name in zip(axes, ("one token", "the whole response")):
        axis.set_xticks(range(len(lengths)), [f"{n}" for n in lengths])
        axis.set(title=f"weight of {name}", xlabel="response length (tokens)")
    for axis in axes:
        axis.axvline(1.5, color=GREY, linewidth=0.8, linestyle=":")
    labels = axes[0].get_legend_handles_labels()
    figure.legend(*labels, loc="outside lower center", ncols=4)
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
    figure, axes = plt.subplots(
        rows, 1, figsize=(7.5, 2.4 * rows + 0.4), sharex=True, squeeze=False
    )
    axis = axes[0, 0]
    for (label, values), colour, dash in zip(named.items(), (RED, GREY), ("-", "--")):
        axis.plot(lengths, values, dash, color=colour, label=label)
    axis.axvspan(start, limit, color=ORANGE, alpha=0.15, linewidth=0)
    axis.axvline(limit, color=BLACK, linewidth=1, linestyle=":")
    axis.text(limit, 0.1, " L_max", va="bottom")
    axis.text((start + limit) / 2, 0.1, "ramp", va="bottom", ha="center")
    axis.set(ylabel="added to the reward", ylim=(-1.1, 0.3))
    if len(named) > 1:
        axis.legend(loc="lower left")
    if right:
        axis, edges = axes[1, 0], range(-1, int(limit) + 2, 2)  # the limit: last bin
        axis.hist(right, edges, color=RIGHT, alpha=0.65, label="right")
        axis.hist(wrong, edges, color=WRONG, alpha=0.65, label="wrong")
        axis.axvspan(start, limit, color=ORANGE, alpha=0.15, linewidth=0)
        axis.axvline(limit, color=BLACK, linewidth=1, linestyle=":")
        axis.set(ylabel="responses")
        axis.legend(loc="upper center")
    axes[-1, 0].set_xlabel("length of the response (tokens)")
    return figure


def widths(runs: dict[str, Sequence], panels: Sequence[tuple[str, str]]) -> Figure:
    """Columns of histories for several ε_high; last, entropy against reward."""
    figure, axes = plt.subplots(1, len(panels) + 1, figsize=(11, 3.1))
    styles = list(zip(runs.items(), WIDTHS, DASHES))
    for axis, (column, title) in zip(axes, panels):
        for (label, histories), colour, dash in styles:
            _band(axis, [h[column] for h in histories], colour, label, dash)
        axis.set(title=title, xlabel="rollout")
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axis.set_ylim(bottom=0)
    axes[0].legend(loc="best", fontsize=9)
    for ((label, histories), colour, _dash), mark in zip(styles, "osx^"):
        for h in histories:
            dots = axes[-1].plot(
                h["reward"], h["entropy"], mark, color=colour, alpha=0.8, ms=4
            )
        dots[0].set_label(label)
    axes[-1].legend(loc="lower left", fontsize=9)
    axes[-1].set(title="entropy at equal reward", xlabel="reward (training)")
    axes[-1].set_ylim(bottom=0)
    return figure


def columns(
    runs: dict[str, Sequence], panels: Sequence[tuple[str, str]], legend: str
) -> Figure:
    """Columns of histories: median and range, the legend where there is room."""
    figure, axes = plt.subplots(1, len(panels), figsize=(9.6, 2.8))
    for axis, (column, title) in zip(axes, panels):
        for (label, histories), colour, dash in zip(
            runs.items(), (BLUE, RED, GREEN), DASHES
        ):
            _band(axis, [h[column] for h in histories], colour, label, dash)
        axis.set(title=title, xlabel="rollout")
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axis.set_ylim(bottom=0)
    axes[0].legend(loc=legend, fontsize=9)
    return figure


def by_updates_and_samples(runs: dict[str, Sequence], updates: int) -> Figure:
    """Reward against updates, and against the responses that were sampled."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.1), sharey=True)
    for (label, histories), colour in zip(runs.items(), (ORANGE, BLUE, BLACK)):
        rewards = list(zip(*(h["reward"] for h in histories)))
        samples = list(zip(*(h["num_samples"] for h in histories)))
        middle = [statistics.median(column) for column in rewards]
        low, high = [min(c) for c in rewards], [max(c) for c in rewards]
        # A rollout's reward is that of the policy before its updates.
        spent = [0, *(statistics.median(column) for column in samples[:-1])]
        steps = [updates * i for i in range(len(middle))]
        for axis, x in ((left, steps), (right, spent)):
            axis.plot(x, middle, color=colour, marker=".", label=label)
            axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
    left.set(xlabel="updates", ylabel="reward (training)", ylim=(0, 1.02))
    left.set_title("against updates")
    left.legend(loc="upper left")
    right.set(xlabel="responses sampled", title="against samples")
    return figure


def parts(named: dict[str, Sequence[float]], title: str, base: str) -> Figure:
    """One row a variant: a dot a seed, a bar at the median."""
    figure, axis = plt.subplots(figsize=(7.5, 0.38 * len(named) + 1.1))
    for row, (_, values) in enumerate(named.items()):
        axis.plot(values, [row] * len(values), "o", color=BLUE, alpha=0.6)
        axis.plot(statistics.median(values), row, "|", color=BLACK, ms=18, mew=2.5)
    axis.axvspan(min(named[base]), max(named[base]), color=ORANGE, alpha=0.15, lw=0)
    axis.set_yticks(range(len(named)), list(named))
    axis.invert_yaxis()
    axis.set(xlabel=title)
    axis.set_title(f"dot: a seed, bar: median, band: range of {base}")
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure


def _band(axis, runs, colour: str, label: str, dash: str = "-") -> None:
    """Median over runs, and their range."""
    table = list(zip(*runs))
    steps = range(1, len(table) + 1)
    middle = [statistics.median(column) for column in table]
    axis.plot(steps, middle, dash, color=colour, label=label)
    low, high = [min(c) for c in table], [max(c) for c in table]
    axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
