"""Figures of chapter 11: all methods as one, gates on real tokens, the theorem."""

import math
import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import primitives as draw
from course.plots.style import (
    BAD,
    BLACK,
    BLUE,
    COLOURS,
    GOOD,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    colour,
)
from refimpl.curves import Curve
from refimpl.history import History

SAPO = COLOURS["sapo"]
STYLES = {  # a gate without a style of its own is SAPO's
    "GRPO": (BLUE, "-."),
    "SAPO, τ = 8.8": (BLACK, "--"),
    "one-sided, τ = 1": (GREEN, ":"),
    "mine": (PINK, "-"),
    "one-sided, τ = 8.8": (PINK, "-"),
}


def _strip(axis, tokens: Sequence[str], z: Sequence[float], rows) -> None:
    """Characters above, their ratios below them, and what each method leaves."""
    cells = [[min(max(float(x), 0), 1) for x in values] for values in rows.values()]
    extent = (-0.5, len(tokens) - 0.5, len(cells) - 0.5, -0.5)
    shades = {"cmap": "Blues", "vmin": 0, "vmax": 1.35}
    axis.imshow(cells, aspect="auto", extent=extent, **shades)
    centred = {"ha": "center", "va": "center", "in_layout": False}
    for row, values in enumerate(cells):
        for column, value in enumerate(values):
            if value < 1e-9:
                axis.text(column, row, "×", color=RED, **centred)
    for column, (token, x) in enumerate(zip(tokens, z)):
        far = abs(x) > 0.18
        look = {"weight": "bold" if far else "normal", "color": BLACK if far else GREY}
        axis.text(column, -1.35, token, family="monospace", **look, **centred)
        if far:
            shown = f"{math.exp(x):.1f}" if x < 2.25 else ">9"
            axis.text(column, -0.78, shown, fontsize=7.5, color=BLACK, **centred)
    draw.row_labels(axis, rows, fontsize=9)
    axis.set_xticks([])
    axis.set_ylim(len(cells) - 0.5, -1.8)
    axis.grid(False)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


def strips(panels) -> Figure:
    """Responses as rows of cells; a panel is (title, tokens, z, {method: gates})."""
    height = sum(0.27 * len(rows) + 0.85 for *_, rows in panels)
    figure, axes = draw.panel_grid(len(panels), (9.5, height), 1)
    for axis, (title, tokens, z, rows) in zip(axes, panels):
        _strip(axis, tokens, z, rows)
        axis.set_title(title, fontsize=10, loc="left")
    return figure


def one_table(
    families: dict[str, dict[int, Curve]], normalisers: dict[str, Sequence[float]]
) -> Figure:
    """Gradient weight of every method for both signs, and the normalisers.

    `normalisers[label]` holds a token's weight × B for lengths 1 … L. Axes end at 3, or
    at 6 where the weight of good tokens goes beyond 3.
    """
    figure, (*axes, last) = draw.panel_grid(8, (11, 5.4), 4)
    for axis, (label, by_sign) in zip(axes, families.items()):
        ratio = by_sign[1].ratio
        axis.plot(ratio, ratio, ":", color=GREY, linewidth=1, label="r, unclipped")
        weights = {"Â < 0": by_sign[-1].coefficient, "Â > 0": by_sign[1].coefficient}
        draw.curve_panel(axis, ratio, weights, ((BAD, "--"), (GOOD, "-")))
        draw.rule(axis, x=1, width=0.7)
        axis.set_title(label, fontsize=10)
        top, step = (6, 2) if by_sign[1].coefficient.max() > 3 else (3, 1)
        ticks = range(0, top + 1, step)
        axis.set(xlim=(0, top), ylim=(-0.03 * top, top), xticks=ticks, yticks=ticks)
    axes[0].legend(loc="upper left", fontsize=9)
    for axis in axes[::4]:
        axis.set_ylabel("gate × ratio")
    for axis in axes[3:]:
        axis.set_xlabel("token ratio r")
    styles = ((BLACK, "-"), (GREEN, "--"), (ORANGE, "-."))
    draw.curve_panel(last, None, normalisers, styles, yscale="log")
    last.set_title("normaliser: one token's share", fontsize=10)
    last.set_xlabel("response length |o|")
    last.legend(loc="upper right", fontsize=9)
    return figure


def surrogates(ratio, named: dict[str, dict[int, Sequence[float]]]) -> Figure:
    """f(r) with f' = gate and f(1) = 1, for both signs."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    dashes = ("-", "-", "--", "-.", ":", "-")
    styles = [(colour(label, default=GREY), dash) for label, dash in zip(named, dashes)]
    for axis, (sign, title) in zip(axes, draw.SIGNS.items()):
        heights = {label: by_sign[sign] for label, by_sign in named.items()}
        draw.curve_panel(axis, ratio, heights, styles, title=title)
        axis.plot([1], [1], "o", color=BLACK, markersize=4)
        axis.set(xlabel="ratio r", ylim=(0, 3), xlim=(0, 3))
    axes[0].set_ylabel("surrogate f(r) = 1 + ∫ w dr")
    axes[1].legend(loc="upper left", fontsize=9)
    return figure


def two_tokens(z, gate, pairs, tau: float) -> Figure:
    """The gate, and pairs (z₁, z₂): their mean gate against the gate of their mean."""
    figure, axes = draw.panel_grid(len(pairs), (9, 3.1), sharey=True)
    for axis, (title, points, heights, middle) in zip(axes, pairs):
        axis.plot(z, gate, color=SAPO)
        mean = sum(points) / 2
        axis.plot(points, heights, "o-", color=BLUE, label="two tokens")
        axis.plot([mean], [sum(heights) / 2], "s", color=BLUE, label="their mean")
        hollow = {"mfc": "none", "mew": 2, "ms": 9, "color": RED}
        axis.plot([mean], [middle], "D", label="gate of the mean", **hollow)
        gap = [sum(heights) / 2, middle]
        axis.plot([mean, mean], gap, color=RED, linewidth=2.5, label="the gap")
        axis.set(title=title, xlabel="log-ratio z")
    axes[0].set_ylabel(f"gate g(z), τ = {tau:g}")
    draw.legend_outside(figure, axes[0], 4, "lower", 9)
    return figure


def variances(named: dict[str, Sequence[float]], limit: float) -> Figure:
    """Histograms of Var_i on a log scale; small ones are gathered at the left."""
    figure, axes = draw.panel_grid(len(named), (9, 2.9), sharey=True)
    edges = [limit * 10 ** (0.25 * k) for k in range(-13, 12)]
    for axis, (title, values) in zip(axes, named.items()):
        small = [v for v in values if v < limit]
        draw.hist(axis, values, edges, ORANGE, len(values))
        draw.hist(axis, small, edges, SKY, len(values))
        draw.rule(axis, x=limit, colour=BLACK, dash="--", width=1.2)
        text = {"transform": axis.get_xaxis_transform(), "ha": "right", "va": "top"}
        share = f"{len(small) / len(values):.0%} below {limit:g}"
        axis.text(limit * 0.7, 0.97, share, fontsize=9, **text)
        axis.set(xscale="log", title=title, xlabel="Var of log r within a response")
    axes[0].set_ylabel("share of responses")
    return figure


def gap_and_gradient(panels) -> Figure:
    """Two errors against Var_i, with their bounds.

    A panel is (title, variances, gaps, gradient errors, bound, first-order bound).
    """
    figure, axes = draw.panel_grid(len(panels), (9.5, 3.7), sharey=True)
    grid = [10 ** (-4 + 0.1 * k) for k in range(51)]
    style = {"s": 16, "alpha": 0.75, "linewidths": 0}
    errors_of = "error of the mean gate", "error of the gradient"
    for axis, (title, x, gaps, errors, second, first) in zip(axes, panels):
        bounds = {"(τ²/4) Var": second, "(2τ/3√3) √Var": first}
        lines = {label: [bound(v) for v in grid] for label, bound in bounds.items()}
        draw.curve_panel(axis, grid, lines, ((BLUE, "-"), (RED, "--")), title=title)
        axis.scatter(x, gaps, color=BLUE, label=errors_of[0], **style)
        axis.scatter(x, errors, color=RED, marker="^", label=errors_of[1], **style)
        axis.set(xscale="log", yscale="log", xlim=(1e-3, 10), ylim=(1e-4, 8))
        axis.set_xlabel("Var of log r within a response")
    axes[0].legend(loc="lower right", fontsize=8.5)
    return figure


def a1_error(ratio, panels) -> Figure:
    """The gate in r − 1 and the gate in log r; a panel is (title, one, other)."""
    figure, axes = draw.panel_grid(len(panels), (9, 3), sharey=True)
    for axis, (title, in_ratio, in_log) in zip(axes, panels):
        lines = {"in r − 1 (SAPO)": in_ratio, "in log r (theorem)": in_log}
        draw.curve_panel(axis, ratio, lines, ((SAPO, "-"), (BLACK, "--")), title=title)
        axis.fill_between(ratio, in_ratio, in_log, color=ORANGE, alpha=0.3)
        draw.rule(axis, x=1)
        axis.set(xlabel="ratio r", ylim=(-0.03, 1.05))
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
    for (label, (one, f)), style in zip(named.items(), styles):
        for axis, values in zip(top, (f, one.coefficient / one.ratio, one.coefficient)):
            draw.curve_panel(axis, one.ratio, {label: values}, [style])
    titles = {"surrogate f": 3, "gate w": 1.5, "gate × ratio": 3}
    for axis, (title, limit) in zip(top, titles.items()):
        draw.rule(axis, x=1)
        axis.set(title=title, xlim=(0, 3), ylim=(-0.06, limit), xlabel="ratio r")
    top[0].legend(loc="upper left", fontsize=8.5)
    lower = grid[1, :].subgridspec(1, len(kept))
    edges = [-1.2 + 0.05 * k - 0.025 for k in range(50)]
    for place, ((label, gates), (shade, _)) in enumerate(zip(kept.items(), styles)):
        axis = figure.add_subplot(lower[0, place])
        weights = [min(max(float(g), 0), 1) for g in gates]
        draw.hist(axis, z, edges, BLACK, log=True, histtype="step")
        draw.hist(axis, z, edges, shade, log=True, weights=weights)
        far = [w for x, w in zip(z, weights) if abs(x) > 0.2]
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
    for label, shade, offset in parts:
        rows = [row + offset for row in range(len(shares))]
        values = [by_part[label] for by_part in shares.values()]
        axis.barh(rows, values, height=0.38, color=shade, label=label)
    draw.rule(axis, x=1)
    draw.row_labels(axis, shares)
    axis.set_xlabel("mean gate of tokens with |log r| > 0.2  (1: nothing is taken)")
    draw.legend_outside(figure, axis, 2, fontsize=9)
    return figure


def own_gate(named: dict[str, dict[int, Curve]]) -> Figure:
    """Gate and gate × ratio of a few methods, for both signs."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 5), sharex=True)
    styles = [STYLES.get(label, (SAPO, "-")) for label in named]
    for column, (sign, title) in zip(axes.T, draw.SIGNS.items()):
        products = {
            label: by_sign[sign].coefficient for label, by_sign in named.items()
        }
        ratio = next(iter(named.values()))[sign].ratio
        gates = {label: weight / ratio for label, weight in products.items()}
        draw.curve_panel(
            column[0], ratio, gates, styles, title=title, ylim=(-0.05, 1.1)
        )
        draw.curve_panel(column[1], ratio, products, styles, ylim=(-0.1, 3))
        column[1].set_xlabel("ratio r")
        for axis in column:
            draw.rule(axis, x=1)
    axes[0, 0].set_ylabel("gate w")
    axes[1, 0].set_ylabel("gate × ratio")
    axes[1, 1].legend(loc="upper left", fontsize=9)
    return figure


def arms(
    runs: dict[str, Sequence[History]], panels: Sequence[tuple[str, str]]
) -> Figure:
    """Median over seeds and their range; the last panel is the final accuracy."""
    figure, (*axes, last) = draw.panel_grid(len(panels) + 1, (10, 5), 3)
    styles = [STYLES.get(label, (SAPO, "-")) for label in runs]
    draw.metric_panels(axes, runs, panels, styles, from_zero=False)
    final = {
        label: [h.accuracy for h in histories] for label, histories in runs.items()
    }
    draw.dots(last, final, [shade for shade, _ in styles])
    began = statistics.fmean(h["reward"][0] for hs in runs.values() for h in hs)
    draw.rule(last, x=began, width=1.8)
    last.tick_params("y", labelsize=9)
    last.set(xlim=(-0.02, 1), title="final accuracy")
    last.set_xlabel("bar: median; dotted: rollout 1")
    draw.legend_outside(figure, axes[0], 5)
    return figure
