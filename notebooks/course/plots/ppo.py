"""Figures of chapter 02: the clip's six cases, credit, stale ratios, the KL leash."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from refimpl.curves import Curve
from course.plots import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    HABIT_COLOURS,
    ORANGE,
    PINK,
    RED,
    training,
)

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
    """`plots.training`, with shares on a common scale and the ratio on a log scale."""
    figure = training(runs, panels)
    figure.axes[0].get_legend().remove()
    for axis, (name, _) in zip(figure.axes, panels):
        if name == "ratio/max_deviation":
            axis.set(yscale="log", ylim=(0.5, None))
        elif name.startswith(("habit", "reward")):
            axis.set_ylim(0, 1.03)
        if name == "habit/careful":
            handles, labels = figure.axes[0].get_legend_handles_labels()
            axis.legend(handles, labels, loc="lower right")
    return figure


def six_cases(by_sign: dict[int, Curve], low: float = 0.2, high: float = 0.2) -> Figure:
    """The clipped objective: thick where the token has a gradient, dotted where none.

    The cases are numbered from left to right, first for Â > 0, then for Â < 0.
    """
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8))
    for column, (axis, sign) in enumerate(zip(axes, (1, -1))):
        one = by_sign[sign]
        top = float(one.ratio.max())
        edges = (0, 1 - low, 1 + high, top)
        bottom, ceiling = (0, 1.9) if sign > 0 else (-2.0, 0)
        active = one.weight.abs() > 0
        objective = one.objective
        axis.plot(one.ratio, objective, color=GREY, linestyle=":", linewidth=2)
        shown = objective.clone()
        shown[~active] = float("nan")
        axis.plot(one.ratio, shown, color=BLUE if sign > 0 else RED, linewidth=4)
        for i, word in enumerate(WANTED[sign]):
            middle = (edges[i] + edges[i + 1]) / 2
            dead = word == "enough"
            axis.axvspan(edges[i], edges[i + 1], color=GREY, alpha=0.22 * dead, lw=0)
            level = bottom + 0.86 * (ceiling - bottom)
            note = "no gradient" if dead else ("pull back" if i != 1 else "push")
            arrow = "" if dead else ("\n→" if sign > 0 else "\n←")
            label = f"{3 * column + i + 1}\n{word}\n{note}{arrow}"
            axis.text(middle, level, label, ha="center", va="center", fontsize=9)
        for edge in (1 - low, 1 + high):
            axis.axvline(edge, color=BLACK, linewidth=0.8)
        axis.set_xticks([0, 1 - low, 1, 1 + high, top], ["0", "1−ε", "1", "1+ε", "2"])
        axis.set(xlim=(0, top), ylim=(bottom, ceiling), xlabel="ratio  r")
        way = "raise r" if sign > 0 else "lower r"
        axis.set_title(
            f"advantage {'> 0' if sign > 0 else '< 0'}:  the token wants to {way}"
        )
        axis.grid(False)
    axes[0].set_ylabel("objective")
    return figure


def credit(responses: Sequence[tuple[str, Sequence, Sequence]]) -> Figure:
    """V before each token (line) and the advantage of each token (bars).

    `responses` holds (title, tokens as text, values, advantages).
    """
    figure, axes = plt.subplots(
        len(responses), 1, figsize=(10, 1.6 * len(responses)), sharey=True
    )
    width = max(len(tokens) for _, tokens, _, _ in responses)
    for axis, (title, tokens, values, advantages) in zip(axes, responses):
        where = range(len(tokens))
        colours = [BLUE if a >= 0 else RED for a in advantages]
        axis.bar(where, advantages, color=colours, width=0.75)
        axis.step(where, values, color=BLACK, where="mid", linewidth=1.4)
        axis.axhline(0, color=BLACK, linewidth=0.6)
        axis.set_xticks(where, tokens, fontsize=10, family="monospace")
        axis.set(xlim=(-0.7, width - 0.3), ylim=(-1.25, 1.25), yticks=[-1, 0, 1])
        axis.set_title(title, loc="left", fontsize=10)
        axis.grid(False, axis="x")
    axes[0].plot([], [], color=BLACK, label="V before the token")
    axes[0].bar([0], [0], color=BLUE, label="advantage > 0")
    axes[0].bar([0], [0], color=RED, label="advantage < 0")
    lines = axes[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def gae_terms(tokens, delta, advantages, title: str) -> Figure:
    """δ_t beside Â_t, token by token."""
    figure, axis = plt.subplots(figsize=(9, 3))
    where = range(len(tokens))
    axis.bar([x - 0.2 for x in where], delta, 0.38, color=GREY, label="δ_t")
    axis.bar([x + 0.2 for x in where], advantages, 0.38, color=BLUE, label="Â_t")
    axis.set_xticks(where, tokens, family="monospace")
    axis.axhline(0, color=BLACK, linewidth=0.6)
    axis.set(ylim=(-1.25, 1.25), title=title)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    axis.grid(False, axis="x")
    return figure


def lambda_tradeoff(lams, bias, variance) -> Figure:
    """Squared bias, variance and their sum against λ."""
    figure, axis = plt.subplots(figsize=(6.4, 3.2))
    axis.plot(lams, bias**2, color=RED, linestyle="--", label="bias²")
    axis.plot(lams, variance, color=BLUE, linestyle="-.", label="variance")
    axis.plot(lams, bias**2 + variance, color=BLACK, label="sum")
    axis.set(xlabel="λ", ylabel="squared error of Â", ylim=(0, None), xlim=(0, 1))
    axis.legend(loc="center left")
    return figure


def drift(
    updates: dict[str, tuple[Sequence, Sequence]], epsilon: float = 0.2
) -> Figure:
    """Share of tokens outside 1 ± ε, and the largest |r − 1|, after each update."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    styles = ((BLACK, "-"), (GREY, "--"))
    for (name, (outside, largest)), (colour, dash) in zip(updates.items(), styles):
        steps = range(len(outside))
        left.plot(steps, outside, color=colour, linestyle=dash, label=name)
        right.plot(steps, largest, color=colour, linestyle=dash)
    right.axhline(epsilon, color=RED, linewidth=1.2)
    right.text(len(outside) - 1, epsilon + 0.15, "ε", color=RED, ha="right")
    left.set(title="share of tokens with |r − 1| > ε", xlabel="update", ylim=(0, None))
    right.set(title="largest |r − 1|", xlabel="update", ylim=(0, None))
    left.legend(loc="upper left")
    return figure


def ratio_histogram(ratios, advantages, epsilon: float, title: str) -> Figure:
    """Ratios of all tokens on a log scale; grey where a token has no gradient."""
    figure, axes = plt.subplots(2, 1, figsize=(8, 4), sharex=True)
    low, high, top = 1 - epsilon, 1 + epsilon, 8.0
    edges = [top ** (i / 40) for i in range(-40, 41)]
    shown = ratios.clamp(edges[0] * 1.001, top * 0.999)
    for axis, sign, colour in zip(axes, (1, -1), (BLUE, RED)):
        own = shown[advantages * sign > 0]
        dead = (own > high) if sign > 0 else (own < low)
        axis.hist(own.tolist(), edges, color=colour, alpha=0.85)
        axis.axvspan(
            *((high, top) if sign > 0 else (edges[0], low)), color=GREY, alpha=0.25
        )
        axis.set(xscale="log", yscale="log", ylim=(0.7, 4000), xlim=(edges[0], top))
        share = dead.float().mean().item() if len(dead) else 0.0
        where = 0.98 if sign > 0 else 0.02
        axis.text(
            where,
            0.9,
            f"clipped: {share:.0%}",
            transform=axis.transAxes,
            ha="right" if sign > 0 else "left",
            va="top",
        )
        axis.set_ylabel(f"tokens, Â {'> 0' if sign > 0 else '< 0'}")
        for bound in (low, high):
            axis.axvline(bound, color=BLACK, linewidth=0.8)
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
    for name, (colour, dash) in zip(values, styles):
        left.plot(d, values[name], color=colour, linestyle=dash, label=name)
        right.plot(d, slopes[name], color=colour, linestyle=dash)
    for axis in (left, right):
        axis.axhline(0, color=BLACK, linewidth=0.6)
        axis.axvline(0, color=BLACK, linewidth=0.6)
        axis.set_xlabel("d = log π_θ − log π_ref")
    left.set(title="value", ylim=(-2, 4))
    right.set(title="slope in log π_θ, as a loss", ylim=(-4, 3))
    left.legend(loc="upper center")
    return figure


def tilt(betas, accuracy, nats, shares: dict[str, float], beta: float) -> Figure:
    """What a KL leash of strength β leaves: the best policy's habits, reward and KL."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    colours = [HABIT_COLOURS.get(name, GREY) for name in shares]
    left.barh(list(shares), list(shares.values()), color=colours)
    left.invert_yaxis()
    left.set(
        xlim=(0, 1),
        xlabel="share of answers",
        title=f"habits of the best policy at β = {beta:.2f}",
    )
    right.plot(betas, accuracy, color=BLUE, label="accuracy")
    right.plot(betas, nats, color=RED, linestyle="--", label="KL (nats/response)")
    right.axvline(beta, color=BLACK, linewidth=1)
    right.set(
        xlabel="β (reward per nat)", ylim=(0, 1.15), title="price of staying near"
    )
    right.legend(loc="upper right")
    return figure


def leash_runs(runs: dict[str, Sequence], level: float) -> Figure:
    """Reward and KL of runs with and without a KL term; `level`: predicted accuracy."""
    panels = (
        ("reward", "reward (training)"),
        ("kl", "KL to the warm start (nats/token)"),
    )
    figure = training(runs, panels)
    figure.set_size_inches(9, 3.2)
    first = figure.axes[0]
    first.axhline(
        level, color=BLACK, linewidth=1, linestyle=":", label="best, β in reward"
    )
    first.set_ylim(0, 1.03)
    first.legend(loc="lower right", fontsize=8.5)
    return figure


def value_clip(values, losses: dict, low: float, high: float) -> Figure:
    """The critic's loss against V, with and without its clip."""
    figure, axis = plt.subplots(figsize=(6.4, 3))
    axis.axvspan(low, high, color=GREY, alpha=0.2, linewidth=0)
    for (name, loss), (colour, dash) in zip(
        losses.items(), ((GREY, "--"), (GREEN, "-"))
    ):
        axis.plot(values, loss, color=colour, linestyle=dash, label=name)
    axis.text((low + high) / 2, 0.02, "V_old ± ε", ha="center", fontsize=9)
    axis.set(xlabel="V", ylabel="value loss", ylim=(0, None))
    axis.legend(loc="upper right")
    return figure


def return_paths(panels: dict[str, dict[str, Sequence]]) -> Figure:
    """One token's ratio under gradient steps of three objectives, from each start."""
    figure, axes = plt.subplots(1, len(panels), figsize=(10, 3), sharex=True)
    styles = ((BLACK, "-"), (RED, "--"), (PINK, "-."))
    for axis, (title, paths) in zip(axes, panels.items()):
        axis.axhspan(0.8, 1.2, color=GREY, alpha=0.2, linewidth=0)
        for (name, path), (colour, dash) in zip(paths.items(), styles):
            axis.plot(path, color=colour, linestyle=dash, label=name)
        axis.set(title=title, xlabel="gradient step", ylim=(0, 2.2))
    axes[0].set_ylabel("ratio  r")
    axes[0].legend(loc="upper right", fontsize=9)
    return figure
