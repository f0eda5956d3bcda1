"""Figures of chapter 04: lengths in training, what each division climbs."""

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from course import explorer
from course.plots import primitives as draw
from course.plots.style import (
    BAD,
    COLOURS,
    FREE,
    GOOD,
    GREY,
    HABIT_COLOURS,
    INK,
    RIGHT,
    WRONG,
    colour,
    looks_of,
)
from refimpl.advantages import Scored, group_centred, group_relative
from refimpl.history import History

PANELS = (
    ("reward", "reward (training)"),
    ("length/wrong", "length of wrong answers"),
    ("length/correct", "length of right answers"),
    ("habit/careful", "share of careful answers"),
    ("entropy", "entropy (nats/token)"),
    ("clip_ratio/region_mean", "clipped (sign-aware)"),
)


def wrong_habits(runs: Sequence[History], rollouts: Sequence[int]) -> dict[str, float]:
    """The share of each habit among the wrong answers of these rollouts."""
    counts = dict.fromkeys(HABIT_COLOURS, 0.0)
    for history in runs:
        for row in (history.rows[i] for i in rollouts):
            for name in counts:
                right = row[f"habit_accuracy/{name}"]
                wrong = 1 - right if right == right and right is not None else 0.0
                counts[name] += row[f"habit/{name}"] * wrong
    return {name: count / sum(counts.values()) for name, count in counts.items()}


def growth(runs: Sequence[History]) -> Figure:
    """Lengths of right and wrong answers, and which habits the wrong ones have."""
    figure, (left, second) = plt.subplots(
        1, 2, figsize=(8, 3.7), width_ratios=(1.1, 1), layout="constrained"
    )
    for kind, shade, dash in (("correct", RIGHT, "-"), ("wrong", WRONG, "--")):
        label = f"{'right' if kind == 'correct' else 'wrong'} answers"
        draw.band(left, [h[f"length/{kind}"] for h in runs], shade, label, dash)
    draw.rollout_axis(left)
    left.set(title="length (tokens)", ylim=(0, 42))
    left.legend(loc="lower right")
    crowds = {"rollouts\n1–2": range(2), "rollouts\n8–10": range(7, 10)}
    crowds = {when: wrong_habits(runs, rows) for when, rows in crowds.items()}
    draw.stacked(second, crowds, HABIT_COLOURS)
    for bar in second.patches:
        if bar.get_width() > 0.08:
            text = f"{bar.get_width():.0%}"
            second.text(*bar.get_center(), text, ha="center", va="center")
    second.set(title="who is wrong", xlim=(0, 1), xticks=[], ylim=(2.1, -0.5))
    second.grid(False)
    second.spines[["bottom", "left"]].set_visible(False)
    second.legend(loc="lower center", ncols=3, columnspacing=1, handlelength=1.2)
    draw.finding(figure, "Wrong answers grow, but they are no longer the same answers")
    return figure


def walk(
    named: Mapping[str, Mapping[str, Sequence[float]]], limit: int, title: str
) -> Figure:
    """Mean lengths of right and wrong responses while the expected loss is followed."""
    figure, axes = draw.panel_grid(len(named), (8, 3.7), sharey=True)
    for axis, (label, lengths) in zip(axes, named.items()):
        draw.rule(axis, y=limit, width=1)
        axis.plot(lengths["right"], color=RIGHT, label="right responses")
        axis.plot(lengths["wrong"], "--", color=WRONG, label="wrong responses")
        axis.set(title=label, xlabel="step", ylim=(0, limit * 1.16))
        axis.annotate(
            f"limit: {limit} tokens",
            (0.02, limit + 1),
            xycoords=("axes fraction", "data"),
            color="#666666",
            fontsize=11,
        )
    axes[0].set_ylabel("mean length (tokens)")
    draw.legend_outside(figure, axes[0], 2, "lower")
    draw.finding(figure, title)
    return figure


def climbed(
    p, pulls: Mapping[str, Sequence[float]], heights: Mapping[str, Sequence[float]]
) -> Figure:
    """Expected pull on the log-odds of being right, and the objective it climbs."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 4.1))
    for axis, curves in zip(axes, (pulls, heights)):
        for label, y in curves.items():
            look = {"color": colour(label, default=GREY)}
            dash = {"Dr.": "--", "GRP": "-"}.get(label[:3], ":")
            axis.plot(p, y, dash, label=label, zorder=1 if dash == ":" else 2, **look)
        axis.set_xlabel("probability $p$ of a right answer")
        axis.legend(loc="upper left", fontsize=11)
    axes[0].set(title="expected pull on the log-odds", ylim=(0, 0.95))
    axes[1].set(title="what is climbed", ylim=(0, 1.5), yticks=(0, 0.5, 1))
    draw.finding(
        figure, "The std makes GRPO climb another objective, steep at the ends"
    )
    return figure


def climb_explorer(pull_of: Callable) -> explorer.Explorer:
    """The pulls of Dr. GRPO and GRPO for every group size, and what GRPO climbs.

    `pull_of(advantages, size, p)` is the expected pull on the log-odds.
    """
    p = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    sizes = (2, 3, 4, 6, 8, 16, 32, 64)
    true = p * (1 - p)
    table = {
        size: [pull_of(f, size, p) for f in (group_centred, group_relative)]
        for size in sizes
    }

    def height(pull):
        """∫ pull dx, as a function of p, from 0 to 1: x is the log-odds."""
        summed = torch.cumulative_trapezoid(pull, torch.logit(p))
        summed = torch.cat([torch.zeros(1), summed])
        return summed / summed[-1]

    limit = true.sqrt()
    figure = climbed(
        p,
        {"Dr. GRPO": true, "GRPO": true, r"GRPO's limit, $\sqrt{p(1-p)}$": limit},
        {"Dr. GRPO: p": p, "GRPO": p, r"its limit, $(2/\pi)\arcsin\sqrt{p}$": p},
    )
    left, right = figure.axes
    right.lines[2].set_ydata(2 / torch.pi * torch.asin(p.sqrt()))
    for axis in (left, right):
        for line in (axis.lines[2], *axis.legend_.get_lines()[2:]):
            line.set(color=GREY, linestyle=":")
    figure.suptitle("")
    draw.finding(figure, "With G = 64, GRPO weighs 1 of 10 right 1.0 times as 5 of 10")

    def update(size: int) -> list:
        centred, divided = table[size]
        left.lines[0].set_ydata(centred)
        left.lines[1].set_ydata(divided)
        right.lines[1].set_ydata(height(divided))
        tenth, half = (draw.nearest(p, x) for x in (0.1, 0.5))
        shares = [100 * (y[tenth] / y[half]).item() for y in (divided, centred)]
        figure._suptitle.set_text(
            f"G = {size}: a prompt at p = 0.1 is pulled {shares[0]:.0f} % as hard\n"
            f"as one at 0.5 by GRPO, {shares[1]:.0f} % by Dr. GRPO"
        )
        return [*left.lines[:2], right.lines[1], figure._suptitle]

    size = explorer.stops("group size G", sizes, 8)
    return explorer.Explorer(figure, update, {"size": size})


def corners(runs: Mapping[str, Sequence[History]]) -> Figure:
    """The four combinations: median over seeds, and their range."""
    figure, axes = draw.panel_grid(len(PANELS), (8, 6.2), 3)
    draw.metric_panels(axes, runs, PANELS, looks_of(runs), ticks=5)
    for axis in axes[:3]:
        axis.set_xlabel("")
    draw.legend_outside(figure, axes[0], 4, "upper")
    title = "Wrong answers are shorter without 1/|o|; nothing else differs much"
    draw.finding(figure, title)
    return figure


def held(
    runs: Mapping[str, Sequence[Sequence[float]]], start: float, limit: int
) -> Figure:
    """Length of rambles by rollout, every run: GRPO's arms left, Dr. GRPO's right."""
    figure, axes = draw.panel_grid(2, (8, 4), sharey=True)
    styles = looks_of(runs)
    names = [r"divided by $|o|$", r"divided by $L_{\max}$"]
    for i, (axis, name) in enumerate(zip(axes, names)):
        for y, text in ((limit, f"limit:\n{limit}"), (start, f"start:\n{start:.0f}")):
            draw.rule(axis, y=y, dash=":", width=1.2)
            if i:
                place = {"transform": axis.get_yaxis_transform(), "va": "center"}
                axis.text(1.02, y, text, color="#666666", fontsize=11, **place)
        for (label, curves), (shade, dash) in zip(runs.items(), styles):
            if label.startswith("Dr.") == bool(i):
                for k, one in enumerate(curves):
                    shown = None if k else label
                    draw.line(
                        axis, draw.steps(one), one, shade, dash, shown, linewidth=1.6
                    )
                draw.count_runs(axis, label, len(curves), "lines: single runs")
        axis.set(title=name, ylim=(0, limit * 1.12))
        axis.legend(loc="lower left")
        draw.rollout_axis(axis, 8)
    axes[0].set_ylabel("length of rambles (tokens)")
    title = "With the habits fixed, rambles grow reliably only under 1/|o|"
    draw.finding(figure, title)
    return figure


KINDS = ("right", "right", "wrong", "wrong")


def push_explorer() -> explorer.Explorer:
    """Four answers as blocks: width tokens, height push on a token, area the whole."""
    paid, one = torch.tensor([1.0, 1, 0, 0]).double(), torch.zeros(4, dtype=torch.long)
    tops = {"GRPO": 0.062, "Dr. GRPO": 0.0031}
    scored = Scored(paid, one)
    values = {"GRPO": group_relative(scored), "Dr. GRPO": group_centred(scored)}
    figure, axes = plt.subplots(2, 1, figsize=(8, 5.4), sharex=True)
    blocks, texts = {}, {}
    for axis, (name, top) in zip(axes, tops.items()):
        shades = [GOOD if kind == "right" else BAD for kind in KINDS]
        blocks[name] = axis.bar([0] * 4, [0.0] * 4, 1.0, color=shades, align="edge")
        look = {"ha": "center", "fontsize": 11}
        texts[name] = [axis.text(0, 0, "", **look) for _ in KINDS]
        draw.rule(axis, y=0, colour=INK, dash="-")
        axis.set(xlim=(0, 150), ylim=(-1.5 * top, 1.5 * top), ylabel="push on a token")
        axis.grid(False)
        axis.yaxis.set_major_locator(MaxNLocator(5))
        axis.set_title("GRPO", color=INK)
    axes[1].set_xlabel("tokens of the four answers, side by side")
    draw.finding(
        figure, "GRPO: equal areas (answers). Dr. GRPO: equal heights (tokens)"
    )

    def update(short: int, long: int, limit: int) -> list:
        lengths = (short, long, short, long)
        moved = []
        for axis, name in zip(axes, tops):
            place = 4.0
            for i, n in enumerate(lengths):
                divisor = 4 * (n if name == "GRPO" else limit)
                push = values[name][i].item() / divisor
                block, text = blocks[name][i], texts[name][i]
                block.set_x(place)
                block.set_width(n)
                block.set_height(push)
                above = push > 0
                gap = 0.06 * tops[name] * (1 if above else -1)
                text.set_position((place + n / 2, push + gap))
                text.set_verticalalignment("bottom" if above else "top")
                text.set_text(f"{n * push:+.2f}".replace("-", "−"))
                place += n + 1
                moved += [block, text]
            w = r"1/(4\,|o_i|)" if name == "GRPO" else rf"1/(4 \cdot {limit})"
            axis.set_title(f"{name}, $w = {w}$; numbers: sum over the answer")
            moved.append(axis.title)
        return moved

    controls = {
        "short": explorer.slider("short answers (tokens)", 8, 4, 24, 1),
        "long": explorer.slider("long answers (tokens)", 32, 24, 48, 1),
        "limit": explorer.slider("L_max (tokens)", 48, 48, 200, 4),
    }
    return explorer.Explorer(figure, update, controls)


def constants(longest: Sequence[int], per_batch, fixed) -> Figure:
    """Weight of one token from batch to batch, under two constants."""
    figure, axis = plt.subplots(figsize=(8, 3.3))
    steps = range(1, len(longest) + 1)
    look = {"color": COLOURS["dr_grpo"], "linewidth": 5}
    axis.plot(steps, fixed, label=r"$1/(B\,L_{\max})$: Dr. GRPO", **look)
    look = {"color": FREE[0], "markersize": 5, "linewidth": 1}
    axis.plot(
        steps, per_batch, "o-", label=r"$1/(B\cdot$ longest of the batch)", **look
    )
    axis.set(xlabel="mini-batch", title="weight $w$ of one token, $B = 2$")
    axis.set_ylim(0, 1.3 * max(*per_batch, *fixed))
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axis.legend(loc="lower right")
    title = "A token's weight jumps whenever no response of the batch is long"
    draw.finding(figure, title)
    draw.caption(figure, "1 run, seed 0")
    return figure
