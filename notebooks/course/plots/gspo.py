"""Figures of chapter 05: token ratios against sequence ratios, and what is clipped."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from course.plots import primitives as draw
from course.plots import shared
from course.plots.style import BLACK, BLUE, COLOURS, GREEN, GREY, ORANGE, PINK, RED, SKY
from refimpl.curves import Curve

TOKEN, SEQUENCE = COLOURS["grpo"], COLOURS["gspo"]


def responses(rows: Sequence[dict], shares: Mapping[str, float]) -> Figure:
    """Token by token, what has become of some responses; and which tokens clip.

    A row has `characters`, `log_ratios`, `clipped` (a bool per token), `advantage` and
    `s`. `shares[kind]` is the share of all tokens of that kind that are clipped.
    """
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 0.42 * len(rows) + 1.3), width_ratios=(5, 1.3)
    )
    norm = TwoSlopeNorm(0, -1.2, 1.2)
    colours = plt.get_cmap("PuOr_r")
    framed = {"fill": False, "edgecolor": BLACK, "lw": 2, "zorder": 4}
    centred = {"ha": "center", "va": "center", "fontsize": 9, "zorder": 5}
    for y, row in enumerate(rows):
        cells = zip(row["characters"], row["log_ratios"], row["clipped"])
        for x, (character, z, cut) in enumerate(cells):
            box = {"xy": (x, y), "width": 0.94, "height": 0.86}
            face = colours(norm(max(-1.2, min(1.2, z))))
            left.add_patch(plt.Rectangle(**box, facecolor=face, zorder=2))
            if cut:
                left.add_patch(plt.Rectangle(**box, **framed))
            centred["color"] = "white" if abs(z) > 0.85 else BLACK
            left.text(x + 0.47, y + 0.45, character, family="monospace", **centred)
        signed = f"Â {row['advantage']:+.1f}".replace("-", "−")
        left.text(-0.5, y + 0.45, signed, ha="right", va="center")
        text = f"s = {row['s']:.3f}"
        left.text(len(row["characters"]) + 0.4, y + 0.45, text, va="center", fontsize=9)
    widest = max(len(row["characters"]) for row in rows)
    left.set(xlim=(-4.5, widest + 5.5), ylim=(len(rows) + 0.1, -0.1))
    left.set(xticks=[], yticks=[])
    left.grid(False)
    left.spines[["left", "bottom"]].set_visible(False)
    left.set_title("orange: more likely now, purple: less likely, framed: clipped")
    _share_bars(right, shares, (RED, GREY))
    right.set_title("share clipped")
    right.set_ylim(0, max(shares.values()) * 1.2)
    return figure


def _share_bars(axis, shares: Mapping[str, float], colours) -> None:
    """One bar per share, with its value on top."""
    bars = axis.bar(list(shares), list(shares.values()), color=colours, width=0.6)
    axis.bar_label(bars, [f"{value:.1%}" for value in shares.values()], fontsize=9)


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
    """Share of ratios farther from 1 than x: one line per seed, x on a log scale.

    `named[label]` is (|log-ratios| of each seed, colour).
    """
    figure, axis = plt.subplots(figsize=(8.5, 3.3))
    for label, (seeds, colour) in named.items():
        for i, values in enumerate(seeds):
            ordered = sorted(max(float(v), 1e-7) for v in values)
            share = [1 - k / len(ordered) for k in range(len(ordered))]
            style = {"linewidth": 1.4, "alpha": 0.85, "label": None if i else label}
            axis.step(ordered, share, color=colour, **style)
    for text, x in marks.items():
        draw.rule(axis, x=x, colour=RED, width=1.4)
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
    lines = {"measured: rms of log s": found, "predicted: σ_z / √|o|": noise}
    draw.curve_panel(axis, n, lines, ((BLACK, "^-"), (TOKEN, "o--")), yscale="log")
    draw.rule(axis, y=4e-4, colour=RED, width=1.8, label="the paper's ε_high")
    axis.set(xlabel="response length |o| (tokens)", ylabel="|log s|")
    axis.set_ylim(bottom=1e-5)
    draw.legend_beside(axis, 10)
    return figure


def models_of_drift(lengths, table: Mapping[str, Sequence[float]]) -> Figure:
    """Spread of log s against length, for three ways in which tokens may move."""
    figure, axis = plt.subplots(figsize=(7.5, 2.9))
    styles = ((PINK, "-"), (BLUE, "--"), (ORANGE, "-."))
    draw.curve_panel(axis, lengths, table, styles, xscale="log", yscale="log")
    axis.set(xlabel="response length |o|", ylabel="spread of log s")
    draw.rule(axis, y=4e-4, colour=RED, width=1.2)
    axis.text(1.1, 4.6e-4, "ε = 4e-4", color=RED, fontsize=9)
    draw.legend_beside(axis, 10)
    return figure


def curves(named: dict[str, dict[int, Curve]], colours: Sequence[str]) -> Figure:
    """The four panels of every chapter, near ratio 1 and with s on the axis."""
    figure = shared.curves(named, colours)
    for axis in figure.axes[2:]:
        axis.set_xlabel("ratio of the response  s   (one token: s = r)")
    for axis in figure.axes:
        axis.ticklabel_format(axis="x", useOffset=False)
        axis.locator_params(axis="x", nbins=5)
    return figure


def coupling(ratios, named: Mapping[str, Sequence[float]]) -> Figure:
    """Gradient weight of a token that stays at r = 1 while its neighbour moves."""
    figure, axis = plt.subplots(figsize=(8, 3))
    styles = ((TOKEN, "-"), (SEQUENCE, "--"), (BLACK, "-."), (ORANGE, ":"))
    draw.curve_panel(axis, ratios, named, styles, xscale="log", ylim=(-0.05, 1.3))
    draw.rule(axis, x=1)
    axis.set(xlabel="ratio of the other token", ylabel="weight of this one")
    draw.plain_ticks(axis.xaxis, (0.5, 1, 2, 4))
    draw.legend_beside(axis, 10)
    return figure


def bent(log_r, log_s, low: float, high: float, share: Mapping[str, float]) -> Figure:
    """Distributions of r and s, the clip's range, and the shares that are clipped."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=(2.4, 1))
    reach = max(1e-4, 1.05 * max(map(abs, log_r)), 3 * low, 3 * high)
    edges = [-reach + 2 * reach * k / 80 for k in range(81)]
    named = {"log r, a token": (log_r, TOKEN), "log s, a response": (log_s, SEQUENCE)}
    for label, (values, colour) in named.items():
        draw.hist(left, values, edges, colour, len(values), alpha=0.65, label=label)
    left.axvspan(-low, high, color=RED, alpha=0.15, linewidth=0, label="not clipped")
    for bound in (-low, high):
        draw.rule(left, x=bound, colour=RED, dash="--", width=1)
    left.set(yscale="log", xlabel="log-ratio", ylabel="share", xlim=(-reach, reach))
    left.set_ylim(5e-5, 2)
    left.legend(loc="upper right", fontsize=8.5)
    _share_bars(right, share, (TOKEN, SEQUENCE))
    right.set(title="clipped (sign-aware)", ylim=(0, 1.1))
    return figure


def by_update(named: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """Share of tokens clipped at each update of a rollout: median and range."""
    figure, axis = plt.subplots(figsize=(7.5, 3))
    styles = ((TOKEN, "o-"), (SEQUENCE, "^--"), (ORANGE, "s-."))
    for (label, seeds), (colour, mark) in zip(named.items(), styles):
        draw.band(axis, seeds, colour, label, mark)
        axis.set_xticks(draw.steps(seeds[0]))
    axis.set(xlabel="update of the rollout", ylabel="tokens clipped", ylim=(-0.02, 1))
    draw.legend_beside(axis, 10)
    return figure


def scan(
    epsilons: Sequence[float],
    clipped: Sequence[Sequence[float]],
    rewards: Sequence[Sequence[float]],
    grpo: tuple[Sequence[float], Sequence[float]],
) -> Figure:
    """GSPO over ε: what it clips and how fast it learns; GRPO as a band.

    One dot per seed, the line through the medians.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
    for axis, values, reference in zip(axes, (clipped, rewards), grpo):
        for x, column in zip(epsilons, values):
            axis.plot([x] * len(column), column, ".", color=SEQUENCE, alpha=0.6)
        middle = {"GSPO": [draw.median(column) for column in values]}
        draw.curve_panel(axis, epsilons, middle, [(SEQUENCE, "^-")], xscale="log")
        axis.axhspan(min(reference), max(reference), color=TOKEN, alpha=0.2, lw=0)
        centre = {"y": draw.median(reference), "label": "GRPO, ε = 0.2"}
        draw.rule(axis, **centre, colour=TOKEN, dash="--", width=1.8)
        axis.set_xlabel("ε_high of GSPO  (ε_low is ¾ of it)")
    axes[0].set(yscale="log", title="tokens clipped, mean of the run")
    axes[1].set(title="mean reward of the run")
    axes[0].legend(loc="upper right")
    return figure


def seeds(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """One panel per quantity, one row per method, one dot per seed."""
    figure, axes = draw.panel_grid(len(panels), (9, 2.6), sharey=True)
    for axis, (title, named) in zip(axes, panels.items()):
        draw.dots(axis, named, (TOKEN, SKY, SEQUENCE, GREEN, ORANGE))
        axis.set_title(title)
        axis.set_xlim(left=0)
    return figure
