"""Figures of chapter 03: critics, groups, dead groups, ratios over the updates."""

import math
import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import primitives as draw
from course.plots.style import (
    BLACK,
    BLUE,
    COLOURS,
    GREY,
    ORANGE,
    RED,
    RIGHT,
    SKY,
    WRONG,
    colour,
)


def critic(explained, group_mean, losses) -> Figure:
    """What a critic, and the mean of the other answers, know about the reward."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    draw.rule(left, y=0, width=1)
    draw.band(left, explained, COLOURS["ppo"], "critic V")
    draw.band(left, group_mean, COLOURS["grpo"], "mean of the other 7 answers")
    left.set(title="share of the reward's variance explained", xlabel="rollout")
    left.set_ylim(-0.4, 1)
    left.legend(loc="upper left")
    draw.band(right, losses, COLOURS["ppo"])
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
    draw.rule(axis, x=0, dash="-", width=1)
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
    for (label, (plain, scaled)), mark in zip(named.items(), ("o-", ".-")):
        share = [k / (len(plain) - 1) for k in range(len(plain))]
        pulls = {f"no std, {label}": plain, f"with std, {label}": scaled}
        draw.curve_panel(left, share, pulls, ((GREY, mark), (BLUE, mark)))
        boost = [s / p for p, s in zip(plain[1:-1], scaled[1:-1])]
        right.plot(share[1:-1], boost, mark, color=BLUE, label=label)
    left.set(title="pull of a prompt,  Σ|A| / G", ylim=(0, 1.5))
    left.legend(loc="upper center", ncols=2, fontsize=8.5)
    note = "p = 0 and p = 1: no pull,\nnothing to boost"
    right.annotate(note, (0.5, 0.3), ha="center", color=RED)
    right.set(title="with std / without", xlim=(-0.03, 1.03))
    right.set_ylim(bottom=0)
    right.legend(loc="upper center")
    for axis in (left, right):
        axis.set_xlabel("share of right answers  p")
    return figure


def dead_groups(surveys: dict[str, dict[int, tuple[float, float]]]) -> Figure:
    """Share of groups that are all wrong or all right, by number of terms.

    `surveys[title][terms]` is (share all wrong, share all right).
    """
    figure, axes = draw.panel_grid(len(surveys), (9, 2.8), sharey=True)
    for axis, (title, by_terms) in zip(axes, surveys.items()):
        terms = list(by_terms)
        wrong, right = zip(*by_terms.values())
        axis.bar(terms, wrong, color=WRONG, label="all wrong")
        axis.bar(terms, right, bottom=wrong, color=RIGHT, label="all right")
        for x, share in zip(terms, map(sum, by_terms.values())):
            axis.text(x, share + 0.02, f"{share:.0%}", ha="center", fontsize=9)
        axis.set(title=title, xlabel="terms in the sum", ylim=(0, 1.05), xticks=terms)
    axes[0].set_ylabel("share of groups that are dead")
    axes[0].legend(loc="upper left")
    return figure


def losses(named: dict[str, Sequence[float]]) -> Figure:
    """The logged loss of several runs."""
    figure, axis = plt.subplots(figsize=(7.5, 2.8))
    styles = ((BLACK, ".-"), (RED, ".--"), (BLUE, ".-."))
    draw.curve_panel(axis, None, named, styles, title="the loss that is logged")
    draw.rule(axis, y=0)
    axis.set_xlabel("rollout")
    draw.legend_beside(axis, 10)
    return figure


def token_weights(lengths, right, per_response, per_batch) -> Figure:
    """Weight of one token, and of a whole response, under two averages."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3))
    marks = (
        ("GRPO: 1/(B|o|)", per_response, BLUE, "o"),
        ("PPO: 1/Σ|o|", per_batch, BLACK, "x"),
    )
    for label, weights, shade, mark in marks:
        style = {"color": shade, "alpha": 0.7, "s": 24, "marker": mark}
        axes[0].scatter(lengths, weights, label=label, **style)
        totals = [n * w for n, w in zip(lengths, weights)]
        axes[1].scatter(lengths, totals, **style)
    for axis, name in zip(axes, ("one token", "the whole response")):
        axis.set(title=f"weight of {name}", xlabel="response length |o| (tokens)")
        axis.set_ylim(bottom=0)
    axes[0].legend(title="weight of a token", loc="upper right")
    means = []
    for kind, name, shade in ((True, "right", RIGHT), (False, "wrong", WRONG)):
        own = [n for n, r in zip(lengths, right) if bool(r) == kind]
        means.append((statistics.fmean(own), name, shade))
    text = {"transform": axes[1].get_xaxis_transform(), "va": "top", "fontsize": 9}
    for (mean, name, shade), side in zip(sorted(means), ("right", "left")):
        draw.rule(axes[1], x=mean, colour=shade, dash="--", width=1.8)
        beside = mean - 0.6 if side == "right" else mean + 0.6
        note = f"mean length,\n{name}"
        axes[1].text(beside, 0.93, note, ha=side, color=shade, **text)
    return figure


def advantages(panels: Sequence[tuple[str, Sequence[float], Sequence[float]]]):
    """Bars of the advantages in a group; a panel is (title, rewards, advantages)."""
    figure, axes = draw.panel_grid(len(panels), (max(5.0, 3.0 * len(panels)), 2.7))
    for axis, (title, rewards, values) in zip(axes, panels):
        draw.advantage_bars(axis, values, rewards)
        axis.set(title=title, ylim=(-5, 5), xticks=[1, len(values)])
        for value in sorted({round(float(v), 2) for v in values} - {0.0}):
            place = (
                len(values) if value < 0 else 1,
                value + math.copysign(0.15, value),
            )
            text = {"ha": "center", "va": "bottom" if value > 0 else "top"}
            axis.annotate(f"{value:+.2f}", place, fontsize=9, **text)
    axes[0].set_ylabel("advantage")
    return figure


def log_ratios(snapshots: dict[str, Sequence[float]], epsilon: float) -> Figure:
    """Histograms of log r, with the clip's bounds; counts on a log scale."""
    size = (max(5.5, 2.4 * len(snapshots)), 2.7)
    figure, axes = draw.panel_grid(len(snapshots), size, sharey=True)
    low, high = math.log(1 - epsilon), math.log(1 + epsilon)
    edges = [-0.9 + 0.05 * i - 0.025 for i in range(38)]
    for axis, (title, z) in zip(axes, snapshots.items()):
        outside = sum(not low <= float(x) <= high for x in z) / len(z)
        draw.hist(axis, z, edges, SKY, log=True)
        for bound in (low, high):
            draw.rule(axis, x=bound, colour=RED, dash="--", width=1.2)
        axis.set(xlabel="log r", xlim=(-1, 1), ylim=(0.7, 6000))
        axis.set_title(f"{title}\n{outside:.1%} of tokens outside", fontsize=10)
        axis.set_xticks([-0.5, 0, 0.5])
    axes[0].set_ylabel("tokens")
    return figure


def penalty(ratio, named: dict[str, dict[int, Sequence[float]]]) -> Figure:
    """Gradient weight of a token with the KL inside, for Â = +1 and Â = −1."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.9), sharey=True)
    styles = ((BLACK, "-"), (BLUE, "--"), (ORANGE, "-."), (RED, ":"))
    for axis, sign, title in zip(axes, (1, -1), ("advantage +1", "advantage −1")):
        pushes = {label: by_sign[sign] for label, by_sign in named.items()}
        draw.curve_panel(axis, ratio, pushes, styles, title=title, ylim=(-4, 4))
        draw.rule(axis, y=0, dash="-")
        draw.rule(axis, x=1)
        axis.set_xlabel("ratio  r = π_θ / π_old")
    axes[0].set_ylabel("push on log π_θ")
    axes[1].legend(loc="upper right")
    return figure


def against_seconds(
    rewards: dict[str, Sequence[Sequence[float]]], seconds: dict[str, float]
) -> Figure:
    """Median reward against rollouts, and against the seconds they take."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
    for name, runs in rewards.items():
        draw.band(left, runs, colour(name), name)
        middle, _, _ = draw.summary(runs)
        spent = [seconds[name] * (i + 1) for i in range(len(middle))]
        right.plot(spent, middle, color=colour(name), marker=".")
    left.set(xlabel="rollout", ylabel="reward (training)", ylim=(0, 1.02))
    left.set_title("per rollout: median and range")
    left.legend(loc="lower right")
    right.set(xlabel="seconds", title="per second: median")
    right.set_xlim(left=0)
    return figure


def runs_by(named: dict[str, Sequence], panels: Sequence[tuple[str, str]]) -> Figure:
    """Columns of histories, one panel each, in colours that go from cold to warm."""
    figure, axes = draw.panel_grid(len(panels), (9, 3))
    styles = ((SKY, "-"), (BLUE, "--"), (BLACK, "-."), (ORANGE, ":"), (RED, "-"))
    draw.metric_panels(axes, named, panels, styles)
    axes[0].legend(loc="best")
    return figure
