"""Figures of chapter 02: the clip's six cases, credit, stale ratios, the KL leash."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import primitives as draw
from course.plots.shared import training
from course.plots.style import (
    BAD,
    BLACK,
    BLUE,
    GOOD,
    GREEN,
    GREY,
    HABIT_COLOURS,
    ORANGE,
    PINK,
    RED,
)
from refimpl.curves import Curve

WANTED = {1: ("correction", "wanted", "enough"), -1: ("enough", "wanted", "correction")}
PROBLEM = (
    ("habit/careful", "share of careful answers"),
    ("habit_accuracy/careful", "accuracy of careful answers"),
    ("ratio/max_deviation", "largest |ratio − 1|"),
)
LADDER = (
    ("reward", "reward (training)"),
    *PROBLEM,
    ("clip_ratio/region_mean", "clipped tokens (sign-aware)"),
    ("entropy", "entropy (nats/token)"),
)


def stale_runs(runs: dict[str, Sequence], panels) -> Figure:
    """`plots.training`, with shares on a common scale."""
    figure = training(runs, panels)
    shown = figure.axes[0].get_legend_handles_labels()
    figure.axes[0].get_legend().remove()
    for axis, (name, _) in zip(figure.axes, panels):
        if name in draw.LOG_METRICS:
            axis.set_ylim(bottom=0.5)
        elif name.startswith(("habit", "reward")):
            axis.set_ylim(0, 1.03)
        if name == "habit/careful":
            axis.legend(*shown, loc="lower right")
    return figure


def six_cases(by_sign: dict[int, Curve], low: float = 0.2, high: float = 0.2) -> Figure:
    """The clipped objective: thick where the token has a gradient, dotted where none.

    The cases are numbered from left to right, first for Â > 0, then for Â < 0.
    """
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8))
    for column, (axis, sign) in enumerate(zip(axes, (1, -1))):
        ratio, objective, weight = by_sign[sign]
        top = float(ratio.max())
        edges = (0, 1 - low, 1 + high, top)
        bottom, ceiling = (0, 1.9) if sign > 0 else (-2.0, 0)
        axis.plot(ratio, objective, color=GREY, linestyle=":", linewidth=2)
        shown = objective.masked_fill(weight == 0, float("nan"))
        axis.plot(ratio, shown, color=GOOD if sign > 0 else BAD, linewidth=4)
        for i, word in enumerate(WANTED[sign]):
            dead = word == "enough"
            axis.axvspan(edges[i], edges[i + 1], color=GREY, alpha=0.22 * dead, lw=0)
            note = "no gradient" if dead else ("pull back" if i != 1 else "push")
            arrow = "" if dead else ("\n→" if sign > 0 else "\n←")
            label = f"{3 * column + i + 1}\n{word}\n{note}{arrow}"
            place = (edges[i] + edges[i + 1]) / 2, bottom + 0.86 * (ceiling - bottom)
            axis.text(*place, label, ha="center", va="center", fontsize=9)
        for edge in (1 - low, 1 + high):
            draw.rule(axis, x=edge, colour=BLACK, dash="-")
        ticks = ["0", "1−ε", "1", "1+ε", f"{top:g}"]
        axis.set_xticks([0, 1 - low, 1, 1 + high, top], ticks)
        axis.set(xlim=(0, top), ylim=(bottom, ceiling), xlabel="ratio  r")
        way = "raise r" if sign > 0 else "lower r"
        axis.set_title(f"{draw.SIGNS[sign]}:  the token wants to {way}")
        axis.grid(False)
    axes[0].set_ylabel("objective")
    return figure


def credit(responses: Sequence[tuple[str, Sequence, Sequence]]) -> Figure:
    """V before each token (line) and the advantage of each token (bars).

    `responses` holds (title, tokens as text, values, advantages).
    """
    size = (10, 1.6 * len(responses))
    figure, axes = draw.panel_grid(len(responses), size, 1, sharey=True)
    width = max(len(tokens) for _, tokens, _, _ in responses)
    for axis, (title, tokens, values, advantages) in zip(axes, responses):
        where = range(len(tokens))
        colours = [GOOD if a >= 0 else BAD for a in advantages]
        axis.bar(where, advantages, color=colours, width=0.75)
        axis.step(where, values, color=BLACK, where="mid", linewidth=1.4)
        draw.rule(axis, y=0, colour=BLACK, dash="-", width=0.6)
        axis.set_xticks(where, tokens, fontsize=10, family="monospace")
        axis.set(xlim=(-0.7, width - 0.3), ylim=(-1.25, 1.25), yticks=[-1, 0, 1])
        axis.set_title(title, loc="left", fontsize=10)
        axis.grid(False, axis="x")
    axes[0].plot([], [], color=BLACK, label="V before the token")
    axes[0].bar([0], [0], color=GOOD, label="advantage > 0")
    axes[0].bar([0], [0], color=BAD, label="advantage < 0")
    draw.legend_outside(figure, axes[0], 3, "lower", 9)
    return figure


def gae_terms(tokens, delta, advantages, title: str) -> Figure:
    """δ_t beside Â_t, token by token."""
    figure, axis = plt.subplots(figsize=(9, 3))
    draw.grouped_bars(axis, {"δ_t": delta, "Â_t": advantages}, (GREY, BLUE), tokens)
    axis.set_xticks(range(len(tokens)), tokens, family="monospace")
    axis.set(ylim=(-1.25, 1.25), title=title)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    axis.grid(False, axis="x")
    return figure


def lambda_tradeoff(lams, bias, variance) -> Figure:
    """Squared bias, variance and their sum against λ."""
    figure, axis = plt.subplots(figsize=(6.4, 3.2))
    errors = {"bias²": bias**2, "variance": variance, "sum": bias**2 + variance}
    styles = ((RED, "--"), (BLUE, "-."), (BLACK, "-"))
    draw.curve_panel(
        axis, lams, errors, styles, "center left", ylim=(0, None), xlim=(0, 1)
    )
    axis.set(xlabel="λ", ylabel="squared error of Â")
    return figure


def drift(
    updates: dict[str, tuple[Sequence, Sequence]], epsilon: float = 0.2
) -> Figure:
    """Share of tokens outside 1 ± ε, and the largest |r − 1|, after each update."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3))
    for (name, columns), style in zip(updates.items(), ((BLACK, "-"), (GREY, "--"))):
        for axis, values in zip(axes, columns):
            axis.plot(values, style[1], color=style[0], label=name)
    axes[0].set_title("share of tokens with |r − 1| > ε")
    axes[1].set_title("largest |r − 1|")
    for axis in axes:
        axis.set(xlabel="update", ylim=(0, None))
    draw.rule(axes[1], y=epsilon, colour=RED, dash="-", width=1.2)
    axes[1].text(len(values) - 1, epsilon + 0.15, "ε", color=RED, ha="right")
    axes[0].legend(loc="upper left")
    return figure


def ratio_histogram(ratios, advantages, epsilon: float, title: str) -> Figure:
    """Ratios of all tokens on a log scale; grey where a token has no gradient."""
    figure, axes = plt.subplots(2, 1, figsize=(8, 4), sharex=True)
    low, high, top = 1 - epsilon, 1 + epsilon, 8.0
    edges = [top ** (i / 40) for i in range(-40, 41)]
    sides = (
        (1, GOOD, (high, top), 0.98, "right"),
        (-1, BAD, (1 / top, low), 0.02, "left"),
    )
    for axis, (sign, colour, beyond, place, side) in zip(axes, sides):
        own = ratios[advantages * sign > 0]
        dead = (own > high) if sign > 0 else (own < low)
        share = dead.float().mean().item() if len(dead) else 0.0
        draw.hist(axis, own.tolist(), edges, colour, alpha=0.85)
        axis.axvspan(*beyond, color=GREY, alpha=0.25)
        axis.set(xscale="log", yscale="log", ylim=(0.7, 4000), xlim=(1 / top, top))
        text = {"transform": axis.transAxes, "ha": side, "va": "top"}
        axis.text(place, 0.9, f"clipped: {share:.0%}", **text)
        axis.set_ylabel(f"tokens, Â {'> 0' if sign > 0 else '< 0'}")
        for bound in (low, high):
            draw.rule(axis, x=bound, colour=BLACK, dash="-")
    ticks = [0.125, 0.25, 0.5, low, 1, high, 2, 4, 8]
    names = ["≤⅛", "¼", "½", f"{low:.1f}", "1", f"{high:.1f}", "2", "4", "≥8"]
    axes[1].set_xticks(ticks, names)
    axes[1].set_xticks([], minor=True)
    axes[1].set_xlabel("ratio r (grey: no gradient)")
    axes[0].set_title(title)
    return figure


def kl_estimators(d, values: dict, slopes: dict) -> Figure:
    """k1, k2, k3 as functions of the log-ratio d, and their slopes."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    styles = ((GREY, "--"), (ORANGE, "-."), (BLUE, "-"))
    draw.curve_panel(
        left, d, values, styles, "upper center", title="value", ylim=(-2, 4)
    )
    draw.curve_panel(right, d, slopes, styles, title="slope in log π_θ, as a loss")
    right.set_ylim(-4, 3)
    for axis in (left, right):
        draw.rule(axis, y=0, colour=BLACK, dash="-", width=0.6)
        draw.rule(axis, x=0, colour=BLACK, dash="-", width=0.6)
        axis.set_xlabel("d = log π_θ − log π_ref")
    return figure


def tilt(betas, accuracy, nats, shares: dict[str, float], beta: float) -> Figure:
    """What a KL leash of strength β leaves: the best policy's habits, reward and KL."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    colours = [HABIT_COLOURS.get(name, GREY) for name in shares]
    left.barh(range(len(shares)), list(shares.values()), color=colours)
    draw.row_labels(left, shares)
    left.set(xlim=(0, 1), xlabel="share of answers")
    left.set_title(f"habits of the best policy at β = {beta:.2f}")
    lines = {"accuracy": accuracy, "KL (nats/response)": nats}
    styles = ((BLUE, "-"), (RED, "--"))
    draw.curve_panel(right, betas, lines, styles, "upper right", ylim=(0, 1.15))
    draw.rule(right, x=beta, colour=BLACK, dash="-", width=1)
    right.set(xlabel="β (reward per nat)", title="price of staying near")
    return figure


def leash_runs(runs: dict[str, Sequence], level: float) -> Figure:
    """Reward and KL of runs with and without a KL term; `level`: predicted accuracy."""
    reward = ("reward", "reward (training)")
    figure = training(runs, (reward, ("kl", "KL to the warm start (nats/token)")))
    figure.set_size_inches(9, 3.2)
    first = figure.axes[0]
    draw.rule(first, y=level, colour=BLACK, width=1, label="best, β in reward")
    first.set_ylim(0, 1.03)
    first.legend(loc="lower right", fontsize=8.5)
    return figure


def value_clip(values, losses: dict, low: float, high: float) -> Figure:
    """The critic's loss against V, with and without its clip."""
    figure, axis = plt.subplots(figsize=(6.4, 3))
    axis.axvspan(low, high, color=GREY, alpha=0.2, linewidth=0)
    styles = ((GREY, "--"), (GREEN, "-"))
    draw.curve_panel(axis, values, losses, styles, "upper right", ylim=(0, None))
    axis.text((low + high) / 2, 0.02, "V_old ± ε", ha="center", fontsize=9)
    axis.set(xlabel="V", ylabel="value loss")
    return figure


def return_paths(panels: dict[str, dict[str, Sequence]]) -> Figure:
    """One token's ratio under gradient steps of three objectives, from each start."""
    figure, axes = draw.panel_grid(len(panels), (10, 3), sharex=True)
    styles = ((BLACK, "-"), (RED, "--"), (PINK, "-."))
    for axis, (title, paths) in zip(axes, panels.items()):
        axis.axhspan(0.8, 1.2, color=GREY, alpha=0.2, linewidth=0)
        for (name, path), (colour, dash) in zip(paths.items(), styles):
            axis.plot(path, dash, color=colour, label=name)
        axis.set(title=title, xlabel="gradient step", ylim=(0, 2.2))
    axes[0].set_ylabel("ratio  r")
    axes[0].legend(loc="upper right", fontsize=9)
    return figure
