"""Figures of chapter 03: critics, groups, dead groups, ratios over the updates."""

import math
import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import BLACK, BLUE, COLOURS, GREEN, GREY, ORANGE, RED, SKY

RIGHT, WRONG = GREEN, ORANGE


def _band(axis, runs: Sequence[Sequence[float]], colour, label, dash="-") -> None:
    """Median over runs, and their range."""
    table = list(zip(*runs))
    steps = range(1, len(table) + 1)
    middle = [statistics.median(column) for column in table]
    axis.plot(steps, middle, dash, color=colour, label=label)
    low, high = [min(c) for c in table], [max(c) for c in table]
    axis.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)


def critic(explained, group_mean, losses) -> Figure:
    """What a critic, and the mean of the other answers, know about the reward."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    left.axhline(0, color=GREY, linewidth=1, linestyle=":")
    _band(left, explained, COLOURS["ppo"], "critic V")
    _band(left, group_mean, COLOURS["grpo"], "mean of the other 7 answers")
    left.set(title="share of the reward's variance explained", xlabel="rollout")
    left.set_ylim(-0.4, 1)
    left.legend(loc="upper left")
    _band(right, losses, COLOURS["ppo"], "")
    right.set(title="value loss", xlabel="rollout")
    right.set_ylim(bottom=0)
    return figure


def one_group(prompt: str, texts, rewards, advantages) -> Figure:
    """The responses to one prompt, what each was paid, and its advantage."""
    figure, axis = plt.subplots(figsize=(9, 0.36 * len(texts) + 1.1))
    for row, (text, paid, a) in enumerate(zip(texts, rewards, advantages)):
        axis.barh(row, a, color=RIGHT if paid else WRONG)
        shown = text if len(text) <= 34 else text[:33] + "…"
        axis.text(-2.95, row, shown, family="monospace", fontsize=9, va="center")
        axis.text(2.1, row, f"R = {paid:.0f}", fontsize=9, va="center")
        axis.text(2.55, row, f"Â = {a:+.2f}", fontsize=9, va="center")
    axis.axvline(0, color=GREY, linewidth=1)
    axis.invert_yaxis()
    axis.set(xlim=(-3, 3.1), yticks=[], xticks=[-1, 0, 1, 2])
    axis.grid(False)
    axis.spines["left"].set_visible(False)
    axis.set_title(f"{len(texts)} responses to  {prompt}")
    axis.set_xlabel("advantage: how far from the group's mean, in its std")
    return figure


def prompt_weight(named: dict[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """How hard a prompt pulls, without and with the std, and the factor between.

    `named[label]` holds Σ|Ã|/G and Σ|Â|/G for k = 0 … G correct responses.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
    for (label, (plain, scaled)), mark in zip(named.items(), "o."):
        share = [k / (len(plain) - 1) for k in range(len(plain))]
        left.plot(
            share, plain, mark, color=GREY, linestyle="-", label=f"no std, {label}"
        )
        left.plot(
            share, scaled, mark, color=BLUE, linestyle="-", label=f"with std, {label}"
        )
        boost = [s / p for p, s in zip(plain[1:-1], scaled[1:-1])]
        right.plot(share[1:-1], boost, mark, color=BLUE, linestyle="-", label=label)
    left.set(title="pull of a prompt,  Σ|A| / G", xlabel="share of right answers  p")
    left.set_ylim(0, 1.5)
    left.legend(loc="upper center", ncols=2, fontsize=8.5)
    right.annotate(
        "p = 0 and p = 1: no pull,\nnothing to boost",
        (0.5, 0.3),
        ha="center",
        color=RED,
    )
    right.set(title="with std / without", xlabel="share of right answers  p")
    right.set(xlim=(-0.03, 1.03))
    right.set_ylim(bottom=0)
    right.legend(loc="upper center")
    return figure


def dead_groups(surveys: dict[str, dict[int, tuple[float, float]]]) -> Figure:
    """Share of groups that are all wrong or all right, by number of terms.

    `surveys[title][terms]` is (share all wrong, share all right).
    """
    figure, axes = plt.subplots(1, len(surveys), figsize=(9, 2.8), sharey=True)
    for axis, (title, by_terms) in zip(axes, surveys.items()):
        for terms, (wrong, right) in by_terms.items():
            first = terms == min(by_terms)
            parts = (("all wrong", wrong, WRONG), ("all right", right, RIGHT))
            bottom = 0.0
            for label, height, colour in parts:
                axis.bar(
                    terms,
                    height,
                    bottom=bottom,
                    color=colour,
                    label=label if first else None,
                )
                bottom += height
            axis.text(terms, bottom + 0.02, f"{bottom:.0%}", ha="center", fontsize=9)
        axis.set(title=title, xlabel="terms in the sum", ylim=(0, 1.05))
        axis.set_xticks(list(by_terms))
    axes[0].set_ylabel("share of groups that are dead")
    axes[0].legend(loc="upper left")
    return figure


def losses(named: dict[str, Sequence[float]]) -> Figure:
    """The logged loss of several runs."""
    figure, axis = plt.subplots(figsize=(7.5, 2.8))
    for (label, values), colour, dash in zip(
        named.items(), (BLACK, RED, BLUE), ("-", "--", "-.")
    ):
        steps = range(1, len(values) + 1)
        axis.plot(steps, values, dash, color=colour, marker=".", label=label)
    axis.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
    axis.set(xlabel="rollout", title="the loss that is logged")
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def token_weights(lengths, right, per_response, per_batch) -> Figure:
    """Weight of one token, and of a whole response, under two averages."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3))
    marks = (
        ("GRPO: 1/(B|o|)", per_response, BLUE, "o"),
        ("PPO: 1/Σ|o|", per_batch, BLACK, "x"),
    )
    for label, weights, colour, mark in marks:
        style = {"color": colour, "alpha": 0.7, "s": 24, "marker": mark}
        axes[0].scatter(lengths, weights, label=label, **style)
        totals = [n * w for n, w in zip(lengths, weights)]
        axes[1].scatter(lengths, totals, **style)
    names = ("one token", "the whole response")
    for axis, name in zip(axes, names):
        axis.set(title=f"weight of {name}", xlabel="response length |o| (tokens)")
        axis.set_ylim(bottom=0)
    axes[0].legend(title="weight of a token", loc="upper right")
    mean = {
        kind: statistics.fmean(n for n, r in zip(lengths, right) if bool(r) == kind)
        for kind in (True, False)
    }
    for kind, value in mean.items():
        first = value <= mean[not kind]
        axes[1].axvline(value, color=RIGHT if kind else WRONG, linestyle="--")
        axes[1].text(
            value + (-0.6 if first else 0.6),
            0.93,
            f"mean length,\n{'right' if kind else 'wrong'}",
            transform=axes[1].get_xaxis_transform(),
            ha="right" if first else "left",
            va="top",
            color=RIGHT if kind else WRONG,
            fontsize=9,
        )
    return figure


def advantages(panels: Sequence[tuple[str, Sequence[float], Sequence[float]]]):
    """Bars of the advantages in a group; a panel is (title, rewards, advantages)."""
    size = (max(5.0, 3.0 * len(panels)), 2.7)
    figure, axes = plt.subplots(1, len(panels), figsize=size, squeeze=False)
    for axis, (title, rewards, values) in zip(axes[0], panels):
        colours = [RIGHT if r else WRONG for r in rewards]
        axis.bar(range(1, len(values) + 1), values, color=colours)
        axis.axhline(0, color=GREY, linewidth=1)
        axis.set(title=title, xlabel="response", ylim=(-5, 5))
        axis.set_xticks([1, len(values)])
        if not any(values):
            middle = (len(values) + 1) / 2
            axis.text(middle, 0.4, "dead: every Â is 0", ha="center", color=RED)
            continue
        for value in sorted({round(float(v), 2) for v in values}):
            side = "bottom" if value > 0 else "top"
            where = len(values) if value < 0 else 1
            axis.annotate(
                f"{value:+.2f}",
                (where, value + math.copysign(0.15, value)),
                ha="center",
                va=side,
                fontsize=9,
            )
    axes[0, 0].set_ylabel("advantage")
    return figure


def log_ratios(snapshots: dict[str, Sequence[float]], epsilon: float) -> Figure:
    """Histograms of log r, with the clip's bounds; counts on a log scale."""
    size = (max(5.5, 2.4 * len(snapshots)), 2.7)
    figure, axes = plt.subplots(
        1, len(snapshots), figsize=size, sharey=True, squeeze=False
    )
    low, high = math.log(1 - epsilon), math.log(1 + epsilon)
    edges = [-0.9 + 0.05 * i - 0.025 for i in range(38)]
    for axis, (title, z) in zip(axes[0], snapshots.items()):
        inside = [min(max(float(x), -0.9), 0.9) for x in z]
        outside = sum(not low <= x <= high for x in inside) / len(inside)
        axis.hist(inside, bins=edges, color=SKY, log=True)
        for bound in (low, high):
            axis.axvline(bound, color=RED, linestyle="--", linewidth=1.2)
        axis.set(xlabel="log r", xlim=(-1, 1), ylim=(0.7, 6000))
        axis.set_title(f"{title}\n{outside:.1%} of tokens outside", fontsize=10)
        axis.set_xticks([-0.5, 0, 0.5])
    axes[0, 0].set_ylabel("tokens")
    return figure


def penalty(ratio, named: dict[str, dict[int, Sequence[float]]]) -> Figure:
    """Gradient weight of a token with the KL inside, for Â = +1 and Â = −1."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.9), sharey=True)
    styles = zip(named.items(), (BLACK, BLUE, ORANGE, RED), ("-", "--", "-.", ":"))
    for (label, by_sign), colour, dash in styles:
        for axis, sign in zip(axes, (1, -1)):
            axis.plot(ratio, by_sign[sign], dash, color=colour, label=label)
    for axis, sign in zip(axes, (1, -1)):
        axis.axhline(0, color=GREY, linewidth=0.8)
        axis.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
        axis.set_title(f"advantage {'+1' if sign > 0 else '−1'}")
        axis.set_xlabel("ratio  r = π_θ / π_old")
        axis.set_ylim(-4, 4)
    axes[0].set_ylabel("push on log π_θ")
    axes[1].legend(loc="upper right")
    return figure


def against_seconds(
    rewards: dict[str, Sequence[Sequence[float]]], seconds: dict[str, float]
) -> Figure:
    """Median reward against rollouts, and against the seconds they take."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
    for name, runs in rewards.items():
        colour = COLOURS[name.lower()]
        _band(left, runs, colour, name)
        middle = [statistics.median(column) for column in zip(*runs)]
        spent = [seconds[name] * (i + 1) for i in range(len(middle))]
        right.plot(spent, middle, color=colour, marker=".")
    left.set(xlabel="rollout", ylabel="reward (training)", ylim=(0, 1.02))
    left.set_title("per rollout: median and range")
    left.legend(loc="lower right")
    right.set(xlabel="seconds", title="per second: median")
    right.set_xlim(left=0)
    return figure


def runs_by(named: dict[str, Sequence], panels: Sequence[tuple[str, str]]) -> Figure:
    """Columns of histories, one panel each, in colours that go from cold to warm."""
    figure, axes = plt.subplots(1, len(panels), figsize=(9, 3))
    colours = (SKY, BLUE, BLACK, ORANGE, RED)
    dashes = ("-", "--", "-.", ":", "-")
    for axis, (column, title) in zip(axes, panels):
        for (label, histories), colour, dash in zip(named.items(), colours, dashes):
            _band(axis, [h[column] for h in histories], colour, label, dash)
        axis.set(title=title, xlabel="rollout")
        axis.set_ylim(bottom=0)
    axes[0].legend(loc="best")
    return figure
