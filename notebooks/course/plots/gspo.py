"""Figures of chapter 05: token ratios against sequence ratios, and what is clipped."""

import statistics
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from refimpl.curves import Curve
from course.plots import BLACK, BLUE, COLOURS, GREEN, GREY, ORANGE, PINK, RED, SKY
from course.plots import curves as plain_curves

TOKEN, SEQUENCE = COLOURS["grpo"], COLOURS["gspo"]


def responses(rows: Sequence[dict], shares: Mapping[str, float]) -> Figure:
    """Token by token, what has become of some responses; and which tokens clip.

    A row has `characters`, `log_ratios`, `clipped` (a bool a token), `advantage` and
    `log_s`. `shares[kind]` is the share of all tokens of that kind that are clipped.
    """
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 0.42 * len(rows) + 1.3), width_ratios=(5, 1.3)
    )
    norm = TwoSlopeNorm(0, -1.2, 1.2)
    colours = plt.get_cmap("PuOr_r")
    for y, row in enumerate(rows):
        cells = zip(row["characters"], row["log_ratios"], row["clipped"])
        for x, (character, z, cut) in enumerate(cells):
            face = colours(norm(max(-1.2, min(1.2, z))))
            left.add_patch(plt.Rectangle((x, y), 0.94, 0.86, facecolor=face, zorder=2))
            if cut:
                left.add_patch(
                    plt.Rectangle(
                        (x, y), 0.94, 0.86, fill=False, edgecolor=BLACK, lw=2, zorder=4
                    )
                )
            style = {"ha": "center", "va": "center", "fontsize": 9, "zorder": 5}
            style["color"] = "white" if abs(z) > 0.85 else BLACK
            left.text(x + 0.47, y + 0.45, character, family="monospace", **style)
        signed = f"Â {row['advantage']:+.1f}".replace("-", "−")
        left.text(-0.5, y + 0.45, signed, ha="right", va="center")
        text = f"s = {row['s']:.3f}"
        left.text(len(row["characters"]) + 0.4, y + 0.45, text, va="center", fontsize=9)
    widest = max(len(row["characters"]) for row in rows)
    left.set(xlim=(-4.5, widest + 5.5), ylim=(len(rows) + 0.1, -0.1), yticks=[])
    left.set_xticks([])
    left.grid(False)
    for side in ("left", "bottom"):
        left.spines[side].set_visible(False)
    left.set_title("orange: more likely now, purple: less likely, framed: clipped")
    right.bar(list(shares), list(shares.values()), color=(RED, GREY), width=0.6)
    for x, value in enumerate(shares.values()):
        right.text(x, value, f"{value:.1%}", ha="center", va="bottom", fontsize=9)
    right.set_title("share clipped")
    right.set_ylim(0, max(shares.values()) * 1.2)
    return figure


def importance_weights(
    lengths: Sequence[int], table: Mapping[str, tuple[Sequence[float], Sequence[float]]]
) -> Figure:
    """Mean and standard deviation of three weights under π_old, against length."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    styles = zip(table.items(), (BLACK, TOKEN, SEQUENCE), ("o-", "s--", "^-."))
    for (label, (means, deviations)), colour, mark in styles:
        left.plot(lengths, means, mark, color=colour, label=label, markersize=4)
        right.plot(lengths, deviations, mark, color=colour, markersize=4)
    left.set(title="mean under π_old", xlabel="response length |o|", ylim=(0.9, 1.1))
    right.set(title="standard deviation", xlabel="response length |o|", yscale="log")
    left.legend(loc="upper right", fontsize=9)
    return figure


def beyond(
    named: Mapping[str, tuple[Sequence[Sequence[float]], str]],
    marks: Mapping[str, float],
) -> Figure:
    """Share of ratios farther from 1 than x: one line a seed, x on a log scale.

    `named[label]` is (|log-ratios| of each seed, colour).
    """
    figure, axis = plt.subplots(figsize=(8.5, 3.3))
    for label, (seeds, colour) in named.items():
        for i, values in enumerate(seeds):
            ordered = sorted(max(float(v), 1e-7) for v in values)
            share = [1 - k / len(ordered) for k in range(len(ordered))]
            axis.step(
                ordered,
                share,
                color=colour,
                linewidth=1.4,
                alpha=0.85,
                label=label if i == 0 else None,
            )
    for text, x in marks.items():
        axis.axvline(x, color=RED, linestyle=":", linewidth=1.4)
        axis.text(x * 0.93, 1.03, text, color=RED, ha="center", fontsize=9)
    axis.set(xscale="log", xlim=(1e-6, 2), ylim=(0, 1.12))
    axis.set_xlabel("distance from 1:  |log ratio|")
    axis.set_ylabel("share that is farther")
    axis.legend(loc="lower left")
    return figure


def by_length(lengths, log_s, predicted: Sequence[tuple[float, float, float]]):
    """|log s| of every response against its length, and what independent tokens give.

    `predicted` holds (length, σ_z/√|o|, root mean square of log s) of each bin.
    """
    figure, axis = plt.subplots(figsize=(8.5, 3.4))
    shown = [max(abs(float(v)), 1e-5) for v in log_s]
    axis.scatter(lengths, shown, s=12, alpha=0.35, color=SEQUENCE, linewidths=0)
    n, noise, found = zip(*predicted)
    axis.plot(n, found, "^-", color=BLACK, label="measured: rms of log s")
    axis.plot(n, noise, "o--", color=TOKEN, label="predicted: σ_z / √|o|")
    axis.axhline(4e-4, color=RED, linestyle=":", label="the paper's ε_high")
    axis.set(yscale="log", xlabel="response length |o| (tokens)", ylabel="|log s|")
    axis.set_ylim(bottom=1e-5)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def models_of_drift(lengths, table: Mapping[str, Sequence[float]]) -> Figure:
    """Spread of log s against length, for three ways in which tokens may move."""
    figure, axis = plt.subplots(figsize=(7.5, 2.9))
    styles = zip(table.items(), (PINK, BLUE, ORANGE), ("-", "--", "-."))
    for (label, values), colour, dash in styles:
        axis.plot(lengths, values, dash, color=colour, label=label)
    axis.set(xscale="log", yscale="log", xlabel="response length |o|")
    axis.set_ylabel("spread of log s")
    axis.axhline(4e-4, color=RED, linestyle=":", linewidth=1.2)
    axis.text(1.1, 4.6e-4, "ε = 4e-4", color=RED, fontsize=9)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def curves(named: dict[str, dict[int, Curve]], colours: Sequence[str]) -> Figure:
    """The four panels of every chapter, near ratio 1 and with s on the axis."""
    figure = plain_curves(named, colours)
    for axis in figure.axes[2:]:
        axis.set_xlabel("ratio of the response  s   (one token: s = r)")
    for axis in figure.axes:
        axis.ticklabel_format(axis="x", useOffset=False)
        axis.locator_params(axis="x", nbins=5)
    return figure


def coupling(ratios, named: Mapping[str, Sequence[float]]) -> Figure:
    """Gradient weight of a token that stays at r = 1 while its neighbour moves."""
    figure, axis = plt.subplots(figsize=(8, 3))
    colours = (TOKEN, *(SEQUENCE, BLACK, ORANGE))
    for (label, weights), colour, dash in zip(
        named.items(), colours, ("-", "--", "-.", ":")
    ):
        axis.plot(ratios, weights, dash, color=colour, label=label)
    axis.axvline(1, color=GREY, linewidth=0.8, linestyle=":")
    axis.set(
        xlabel="ratio of the other token", ylabel="weight of this one", xscale="log"
    )
    axis.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
    axis.minorticks_off()
    axis.set_ylim(-0.05, 1.3)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def bent(log_r, log_s, low: float, high: float, share: Mapping[str, float]) -> Figure:
    """Distributions of r and s, the clip's range, and the shares that are clipped."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=(2.4, 1))
    reach = max(1e-4, 1.05 * max(map(abs, log_r)), 3 * low, 3 * high)
    edges = [-reach + 2 * reach * k / 80 for k in range(81)]
    for values, colour, label in (
        (log_r, TOKEN, "log r, a token"),
        (log_s, SEQUENCE, "log s, a response"),
    ):
        held = [max(-reach, min(reach, v)) for v in values]
        weights = [1 / len(held)] * len(held)
        left.hist(held, edges, weights=weights, color=colour, alpha=0.65, label=label)
    left.axvspan(-low, high, color=RED, alpha=0.15, linewidth=0, label="not clipped")
    for bound in (-low, high):
        left.axvline(bound, color=RED, linestyle="--", linewidth=1)
    left.set(yscale="log", xlabel="log-ratio", ylabel="share", xlim=(-reach, reach))
    left.set_ylim(5e-5, 2)
    left.legend(loc="upper right", fontsize=8.5)
    right.bar(list(share), list(share.values()), color=(TOKEN, SEQUENCE), width=0.6)
    for x, value in enumerate(share.values()):
        right.text(x, value + 0.02, f"{value:.1%}", ha="center", fontsize=9)
    right.set(title="clipped (sign-aware)", ylim=(0, 1.1))
    return figure


def by_update(named: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """Share of tokens clipped at each update of a rollout: median and range."""
    figure, axis = plt.subplots(figsize=(7.5, 3))
    styles = zip(named.items(), (TOKEN, SEQUENCE, ORANGE), ("o-", "^--", "s-."))
    for (label, seeds), colour, mark in styles:
        table = list(zip(*seeds))
        steps = range(1, len(table) + 1)
        middle = [statistics.median(column) for column in table]
        axis.plot(steps, middle, mark, color=colour, label=label)
        low, high = [min(c) for c in table], [max(c) for c in table]
        axis.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.set(xlabel="update of the rollout", ylabel="tokens clipped", ylim=(-0.02, 1))
    axis.set_xticks(list(steps))
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def scan(
    epsilons: Sequence[float],
    clipped: Sequence[Sequence[float]],
    rewards: Sequence[Sequence[float]],
    grpo: tuple[Sequence[float], Sequence[float]],
) -> Figure:
    """GSPO over ε: what it clips and how fast it learns; GRPO a band; a dot a seed."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
    for axis, values, reference in zip(axes, (clipped, rewards), grpo):
        for x, column in zip(epsilons, values):
            axis.plot([x] * len(column), column, ".", color=SEQUENCE, alpha=0.6)
        middle = [statistics.median(column) for column in values]
        axis.plot(epsilons, middle, "^-", color=SEQUENCE, label="GSPO")
        axis.axhspan(min(reference), max(reference), color=TOKEN, alpha=0.2, lw=0)
        centre = statistics.median(reference)
        axis.axhline(centre, color=TOKEN, linestyle="--", label="GRPO, ε = 0.2")
        axis.set(xscale="log", xlabel="ε_high of GSPO  (ε_low is ¾ of it)")
    axes[0].set(yscale="log", title="tokens clipped, mean of the run")
    axes[1].set(title="mean reward of the run")
    axes[0].legend(loc="upper right")
    return figure


def seeds(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """A dot a seed and a bar for the median; one panel a quantity, a row a method."""
    figure, axes = plt.subplots(1, len(panels), figsize=(9, 2.6), sharey=True)
    colours = (TOKEN, SKY, SEQUENCE, GREEN, ORANGE)
    for axis, (title, named) in zip(axes, panels.items()):
        for y, (values, colour) in enumerate(zip(named.values(), colours)):
            axis.plot(values, [y] * len(values), "o", color=colour, alpha=0.75)
            middle = statistics.median(values)
            axis.plot([middle] * 2, [y - 0.28, y + 0.28], color=BLACK, linewidth=2.5)
        axis.set_title(title)
        axis.set_xlim(left=0)
        axis.set_yticks(range(len(named)), list(named))
        axis.set_ylim(len(named) - 0.5, -0.5)
    return figure
