"""Figures of chapter 11: all methods as one, gates on real tokens, the theorem."""

import math
import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from refimpl.curves import Curve
from refimpl.history import History
from course.plots import (
    BLACK,
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
)

GOOD, BAD = BLUE, RED
MINE = PINK
KEPT = plt.get_cmap("Blues")


def _strip(axis, tokens: Sequence[str], z: Sequence[float], rows) -> None:
    """Characters above, their ratios below them, and what each method leaves."""
    cells = [[min(max(float(x), 0), 1) for x in values] for values in rows.values()]
    axis.imshow(
        cells,
        cmap=KEPT,
        vmin=0,
        vmax=1.35,
        aspect="auto",
        extent=(-0.5, len(tokens) - 0.5, len(cells) - 0.5, -0.5),
    )
    centred = {"ha": "center", "va": "center", "in_layout": False}
    for row, values in enumerate(cells):
        for column, value in enumerate(values):
            if value < 1e-9:
                axis.text(column, row, "×", color=RED, **centred)
    for column, (token, x) in enumerate(zip(tokens, z)):
        far = abs(x) > 0.18
        axis.text(
            column,
            -1.35,
            token,
            family="monospace",
            weight="bold" if far else "normal",
            color=BLACK if far else GREY,
            **centred,
        )
        if far:
            shown = f"{math.exp(x):.1f}" if x < 2.25 else ">9"
            axis.text(column, -0.78, shown, fontsize=7.5, color=BLACK, **centred)
    axis.set_yticks(range(len(rows)), list(rows), fontsize=9)
    axis.set_xticks([])
    axis.set_ylim(len(cells) - 0.5, -1.8)
    axis.grid(False)
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)


def strips(panels) -> Figure:
    """Responses as rows of cells; a panel is (title, tokens, z, {method: gates})."""
    height = sum(0.27 * len(rows) + 0.85 for *_, rows in panels)
    figure, axes = plt.subplots(len(panels), 1, figsize=(9.5, height), squeeze=False)
    for axis, (title, tokens, z, rows) in zip(axes[:, 0], panels):
        _strip(axis, tokens, z, rows)
        axis.set_title(title, fontsize=10, loc="left")
    return figure


def one_table(
    families: dict[str, dict[int, Curve]], normalisers: dict[str, Sequence[float]]
) -> Figure:
    """Gradient weight of every method for both signs, and the normalisers.

    `normalisers[label]` holds a token's weight × B for lengths 1 … L. A label with
    "wider" in it gets axes twice as long.
    """
    figure, axes = plt.subplots(2, 4, figsize=(11, 5.4))
    for axis, (label, by_sign) in zip(axes.flat, families.items()):
        r = by_sign[1].ratio
        axis.plot(r, r, color=GREY, linewidth=1, linestyle=":", label="r, unclipped")
        axis.plot(r, by_sign[-1].weight, color=BAD, linestyle="--", label="Â < 0")
        axis.plot(r, by_sign[1].weight, color=GOOD, label="Â > 0")
        axis.axvline(1, color=GREY, linewidth=0.7, linestyle=":")
        axis.set_title(label, fontsize=10)
        top, step = (6, 2) if "wider" in label else (3, 1)
        ticks = range(0, top + 1, step)
        axis.set(xlim=(0, top), ylim=(-0.03 * top, top), xticks=ticks, yticks=ticks)
    axes[0, 0].legend(loc="upper left", fontsize=9)
    for row in axes:
        row[0].set_ylabel("gate × ratio")
    for axis in axes.flat[4:7]:
        axis.set_xlabel("token ratio r")
    axes[0, 3].set_xlabel("token ratio r")
    last = axes[1, 3]
    styles = ((BLACK, "-"), (GREEN, "--"), (ORANGE, "-."))
    for (label, values), (colour, dash) in zip(normalisers.items(), styles):
        lengths = range(1, len(values) + 1)
        last.plot(lengths, values, color=colour, linestyle=dash, label=label)
    last.set_yscale("log")
    last.set_title("normaliser: one token's share", fontsize=10)
    last.set_xlabel("response length |o|")
    last.legend(loc="upper right", fontsize=9)
    return figure


def surrogates(ratio, named: dict[str, dict[int, Sequence[float]]]) -> Figure:
    """f(r) with f' = gate and f(1) = 1, for both signs."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    dashes = ("-", "-", "--", "-.", ":", "-")
    for axis, sign in zip(axes, (1, -1)):
        for (label, by_sign), dash in zip(named.items(), dashes):
            colour = COLOURS.get(label.lower(), GREY)
            axis.plot(ratio, by_sign[sign], dash, color=colour, label=label)
        axis.plot([1], [1], "o", color=BLACK, markersize=4)
        axis.set_title(f"advantage {'> 0' if sign > 0 else '< 0'}")
        axis.set(xlabel="ratio r", ylim=(0, 3), xlim=(0, 3))
    axes[0].set_ylabel("surrogate f(r) = 1 + ∫ w dr")
    axes[1].legend(loc="upper left", fontsize=9)
    return figure


def two_tokens(z, gate, pairs, tau: float) -> Figure:
    """The gate, and pairs (z₁, z₂): their mean gate against the gate of their mean."""
    figure, axes = plt.subplots(1, len(pairs), figsize=(9, 3.1), sharey=True)
    for axis, (title, points, heights, middle) in zip(axes, pairs):
        axis.plot(z, gate, color=COLOURS["sapo"])
        mean = sum(points) / 2
        axis.plot(points, heights, "o-", color=BLUE, label="two tokens")
        axis.plot([mean], [sum(heights) / 2], "s", color=BLUE, label="their mean")
        hollow = {"mfc": "none", "mew": 2, "ms": 9, "color": RED}
        axis.plot([mean], [middle], "D", label="gate of the mean", **hollow)
        gap = [sum(heights) / 2, middle]
        axis.plot([mean, mean], gap, color=RED, linewidth=2.5, label="the gap")
        axis.set(title=title, xlabel="log-ratio z")
    axes[0].set_ylabel(f"gate g(z), τ = {tau:g}")
    lines = axes[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=4, fontsize=9)
    return figure


def variances(named: dict[str, Sequence[float]], limit: float) -> Figure:
    """Histograms of Var_i on a log scale; small ones are gathered at the left."""
    figure, axes = plt.subplots(1, len(named), figsize=(9, 2.9), sharey=True)
    edges = [limit * 10 ** (0.25 * k) for k in range(-13, 12)]
    for axis, (title, values) in zip(axes, named.items()):
        inside = [min(max(v, edges[0] * 1.01), edges[-1] * 0.99) for v in values]
        small = [v for v in inside if v < limit]
        share = len(small) / len(inside)
        weights = [1 / len(inside)] * len(inside)
        axis.hist(inside, bins=edges, weights=weights, color=ORANGE)
        axis.hist(small, bins=edges, weights=weights[: len(small)], color=SKY)
        axis.axvline(limit, color=BLACK, linestyle="--", linewidth=1.2)
        axis.text(
            limit * 0.7,
            0.97,
            f"{share:.0%} below {limit:g}",
            ha="right",
            va="top",
            transform=axis.get_xaxis_transform(),
            fontsize=9,
        )
        axis.set_xscale("log")
        axis.set(title=title, xlabel="Var of log r within a response")
    axes[0].set_ylabel("share of responses")
    return figure


def gap_and_gradient(panels) -> Figure:
    """Two errors against Var_i, with their bounds.

    A panel is (title, variances, gaps, gradient errors, bound, first-order bound).
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(9.5, 3.7), sharey=True)
    for axis, (title, x, gaps, errors, second, first) in zip(axes, panels):
        grid = [10 ** (-4 + 0.1 * k) for k in range(51)]
        axis.plot(grid, [second(v) for v in grid], color=BLUE, label="(τ²/4) Var")
        axis.plot(
            grid, [first(v) for v in grid], "--", color=RED, label="(2τ/3√3) √Var"
        )
        style = {"s": 16, "alpha": 0.75, "linewidths": 0}
        axis.scatter(x, gaps, color=BLUE, label="error of the mean gate", **style)
        axis.scatter(
            x, errors, color=RED, marker="^", label="error of the gradient", **style
        )
        axis.set(xscale="log", yscale="log", xlim=(1e-3, 10), ylim=(1e-4, 8))
        axis.set(title=title, xlabel="Var of log r within a response")
    axes[0].legend(loc="lower right", fontsize=8.5)
    return figure


def a1_error(ratio, panels) -> Figure:
    """The gate in r − 1 and the gate in log r; a panel is (title, one, other)."""
    figure, axes = plt.subplots(1, len(panels), figsize=(9, 3), sharey=True)
    for axis, (title, in_ratio, in_log) in zip(axes, panels):
        axis.plot(ratio, in_ratio, color=COLOURS["sapo"], label="in r − 1 (SAPO)")
        axis.plot(ratio, in_log, "--", color=BLACK, label="in log r (theorem)")
        axis.fill_between(ratio, in_ratio, in_log, color=ORANGE, alpha=0.3)
        axis.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
        axis.set(title=title, xlabel="ratio r", ylim=(-0.03, 1.05))
    axes[0].legend(loc="lower left", fontsize=9)
    axes[0].set_ylabel("gate")
    return figure


def explore(named: dict[str, tuple[Curve, Sequence[float]]], z, kept, text) -> Figure:
    """The gate explorer: three curves, the rollout's ratios, one of its responses.

    `named[label]` is (curve, f); `kept[label]` the gates of all tokens `z`; `text` is
    (title, tokens, z, {method: gates}).
    """
    figure = plt.figure(figsize=(9.5, 6.6))
    grid = figure.add_gridspec(3, 3, height_ratios=(2.3, 1.9, 1.3))
    top = [figure.add_subplot(grid[0, k]) for k in range(3)]
    styles = ((BLUE, "-"), (ORANGE, "--"))
    titles = ("surrogate f", "gate w", "gate × ratio")
    for (label, (one, f)), (colour, dash) in zip(named.items(), styles):
        for axis, values in zip(top, (f, one.weight / one.ratio, one.weight)):
            axis.plot(one.ratio, values, dash, color=colour, label=label)
    for axis, title, limit in zip(top, titles, (3, 1.5, 3)):
        axis.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
        axis.set(title=title, xlim=(0, 3), ylim=(-0.06, limit))
        axis.set_xlabel("ratio r")
    top[0].legend(loc="upper left", fontsize=8.5)
    lower = grid[1, :].subgridspec(1, len(kept))
    edges = [-1.2 + 0.05 * k - 0.025 for k in range(50)]
    inside = [min(max(float(x), -1.2), 1.2) for x in z]
    for place, ((label, gates), (colour, _)) in enumerate(zip(kept.items(), styles)):
        axis = figure.add_subplot(lower[0, place])
        weights = [min(max(float(g), 0), 1) for g in gates]
        axis.hist(inside, bins=edges, log=True, histtype="step", color=BLACK)
        axis.hist(inside, bins=edges, weights=weights, log=True, color=colour)
        far = [w for x, w in zip(inside, weights) if abs(x) > 0.2]
        left = statistics.fmean(far) if far else 1.0
        axis.set_title(f"{label}: keeps {left:.0%} where |log r| > 0.2", fontsize=9.5)
        axis.set(xlabel="log r of the stored rollout", ylim=(0.5, 5000))
        axis.minorticks_off()
    title, tokens, one, rows = text
    axis = figure.add_subplot(grid[2, :])
    _strip(axis, tokens, one, rows)
    axis.set_title(title, fontsize=9.5, loc="left")
    return figure


def left_of_it(shares: dict[str, dict[str, float]]) -> Figure:
    """What each method leaves of the pushes of tokens that moved by over 0.2."""
    figure, axis = plt.subplots(figsize=(8, 0.34 * len(shares) + 1.1))
    parts = (("moving on", ORANGE, -0.2), ("coming back", GREEN, 0.2))
    for label, colour, shift in parts:
        rows = [row + shift for row in range(len(shares))]
        values = [by_part[label] for by_part in shares.values()]
        axis.barh(rows, values, height=0.38, color=colour, label=label)
    axis.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    axis.set_yticks(range(len(shares)), list(shares))
    axis.invert_yaxis()
    axis.set_xlabel("mean gate of tokens with |log r| > 0.2  (1: nothing is taken)")
    figure.legend(loc="outside upper center", ncols=2, fontsize=9)
    return figure


def own_gate(named: dict[str, dict[int, Curve]]) -> Figure:
    """Gate and gate × ratio of a few methods, for both signs."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 5), sharex=True)
    for label, by_sign in named.items():
        colour, dash = _style(label)
        for column, sign in enumerate((1, -1)):
            one = by_sign[sign]
            style = {"color": colour, "linestyle": dash, "label": label}
            axes[0, column].plot(one.ratio, one.weight / one.ratio, **style)
            axes[1, column].plot(one.ratio, one.weight, **style)
    for column, title in enumerate(("advantage > 0", "advantage < 0")):
        axes[0, column].set(title=title, ylim=(-0.05, 1.1))
        axes[1, column].set(xlabel="ratio r", ylim=(-0.1, 3))
        for row in (0, 1):
            axes[row, column].axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    axes[0, 0].set_ylabel("gate w")
    axes[1, 0].set_ylabel("gate × ratio")
    axes[1, 1].legend(loc="upper left", fontsize=9)
    return figure


def arms(
    runs: dict[str, Sequence[History]], panels: Sequence[tuple[str, str]]
) -> Figure:
    """Median over seeds and their range; the last panel is the final accuracy."""
    figure, axes = plt.subplots(2, 3, figsize=(10, 5))
    for label, histories in runs.items():
        colour, dash = _style(label)
        for axis, (name, _) in zip(axes.flat, panels):
            columns = list(zip(*(h[name] for h in histories)))
            steps = range(1, len(columns) + 1)
            middle = [statistics.median(c) for c in columns]
            axis.plot(steps, middle, color=colour, linestyle=dash, label=label)
            low, high = [min(c) for c in columns], [max(c) for c in columns]
            axis.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)
    for axis, (_, title) in zip(axes.flat, panels):
        axis.set(title=title, xlabel="rollout")
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    last = axes.flat[5]
    for row, (label, histories) in enumerate(runs.items()):
        colour, _ = _style(label)
        values = [h.accuracy for h in histories]
        last.scatter(values, [row] * len(values), color=colour, zorder=3)
        middle = statistics.median(values)
        last.plot([middle] * 2, [row - 0.25, row + 0.25], color=BLACK, linewidth=1.5)
    began = statistics.fmean(h["reward"][0] for hs in runs.values() for h in hs)
    last.axvline(began, color=GREY, linestyle=":")
    last.set_yticks(range(len(runs)), list(runs), fontsize=9)
    last.set(
        xlim=(-0.02, 1), title="final accuracy", xlabel="bar: median; dotted: rollout 1"
    )
    last.invert_yaxis()
    lines = axes[0, 0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside upper center", ncols=5)
    return figure


def _style(label: str) -> tuple[str, str]:
    """One colour and dash for a gate, in every figure of the chapter."""
    styles = {
        "GRPO": (BLUE, "-."),
        "SAPO, τ = 8.8": (BLACK, "--"),
        "one-sided, τ = 1": (GREEN, ":"),
        "mine": (MINE, "-"),
        "one-sided, τ = 8.8": (MINE, "-"),
    }
    return styles.get(label, (COLOURS["sapo"], "-"))
