"""Figures of chapter 04: weights against length and difficulty, lengths in training."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from course.plots import primitives as draw
from course.plots.style import BLACK, BLUE, GREY, HABIT_COLOURS, RED, RIGHT, WRONG

METHODS = (BLUE, RED)  # with the division, without
STYLES = ((BLUE, "-"), (BLUE, ":"), (RED, "-"), (RED, ":"))


def growth(right, wrong, crowds: dict[str, dict[str, float]]) -> Figure:
    """Lengths of right and wrong answers, and which habits the wrong ones have.

    `crowds[when][habit]` is a share of the wrong answers.
    """
    figure, (left, second) = plt.subplots(1, 2, figsize=(9, 3), width_ratios=(1.15, 1))
    draw.band(left, wrong, WRONG, "wrong answers", "--")
    draw.band(left, right, RIGHT, "right answers")
    draw.rollout_axis(left)
    left.set_title("length (tokens)")
    left.set_ylim(bottom=0)
    left.legend(loc="lower right")
    draw.stacked(second, crowds, HABIT_COLOURS)
    for bar in second.patches:
        if bar.get_width() > 0.08:
            middle = bar.get_center()
            second.text(*middle, f"{bar.get_width():.0%}", ha="center", va="center")
    second.set(title="who is wrong", xlabel="share of the wrong answers", xlim=(0, 1))
    second.set_ylim(2.0, -0.5)
    second.grid(False)
    second.legend(loc="lower center", ncols=3, fontsize=9)
    return figure


def token_weights(lengths, weights: dict[str, Sequence[float]]) -> Figure:
    """Weight of one token and of the whole response, under each division."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3))
    for (label, values), colour, mark in zip(weights.items(), METHODS, "o^"):
        style = {"color": colour, "marker": mark, "markersize": 5, "linewidth": 1.2}
        axes[0].plot(lengths, values, label=label, **style)
        axes[1].plot(lengths, [n * w for n, w in zip(lengths, values)], **style)
    for axis, name in zip(axes, ("one token", "the whole response")):
        axis.set(title=f"weight of {name}", xlabel="response length |o| (tokens)")
        axis.set_ylim(bottom=0)
    axes[0].legend(loc="upper right")
    return figure


def walk(named: dict[str, dict[str, Sequence[float]]], limit: int) -> Figure:
    """Mean lengths of right and wrong responses while the expected loss is followed."""
    figure, axes = draw.panel_grid(len(named), (4.5 * len(named), 2.9), sharey=True)
    for axis, (title, lengths) in zip(axes, named.items()):
        draw.rule(axis, y=limit, width=1)
        axis.plot(lengths["right"], color=RIGHT, label="right responses")
        axis.plot(lengths["wrong"], "--", color=WRONG, label="wrong responses")
        axis.set(title=title, xlabel="step", ylim=(0, limit * 1.08))
    axes[0].set_ylabel("mean length (tokens)")
    where = {"xycoords": ("axes fraction", "data"), "va": "top"}
    axes[0].annotate("limit", (0.01, limit), color=GREY, **where)
    axes[-1].legend(loc="upper right", bbox_to_anchor=(1, 0.9))
    return figure


def difficulty(size: int, plain, scaled, chosen: int | None = None) -> Figure:
    """What a prompt weighs beside the heaviest, and the factor that the std adds.

    `chosen` marks one k, with its Σ|A|.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    share = [k / size for k in range(size + 1)]
    pulls = {"with the std (GRPO)": scaled, "without (Dr. GRPO)": plain}
    for (label, values), colour, mark in zip(pulls.items(), METHODS, ("o-", "^-")):
        shown = [v / max(values) for v in values]
        left.plot(share, shown, mark, color=colour, markersize=5, label=label)
    left.set(title="weight, the heaviest prompt = 1", ylim=(0, 1.05))
    left.legend(loc="lower center")
    inside = [x for x, p in zip(share, plain) if p]
    boost = [s / p for p, s in zip(plain, scaled) if p]
    boost = [b / min(boost) for b in boost]
    right.plot(inside, boost, color=BLACK, marker="o", markersize=5)
    note = "0 and G right: no push,\nnothing to boost"
    right.annotate(note, (0.5, 0.2), ha="center", color=RED)
    right.set(title="boost by the std, smallest = 1", xlim=(-0.03, 1.03))
    right.set_ylim(bottom=0)
    for axis in (left, right):
        axis.set_xlabel("share right  k/G")
        if chosen is not None:
            draw.rule(axis, x=chosen / size, dash="--", width=1)
    if chosen is not None:
        figure.suptitle(
            f"{chosen} of {size} right:  Σ|A| = {plain[chosen]:.2f} without the std, "
            f"{scaled[chosen]:.2f} with it",
            fontsize=11,
        )
    return figure


def climbed(p, pulls: dict[str, Sequence[float]], heights: dict[str, Sequence[float]]):
    """Expected pull on the log-odds of being right, and the objective it climbs."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3))
    styles = ((BLACK, "-"), (RED, "--"), (BLUE, "-"), (GREY, ":"))
    draw.curve_panel(axes[0], p, pulls, styles, title="expected pull on the log-odds")
    axes[0].set_ylim(0, 0.8)
    axes[0].legend(loc="upper center", ncols=2, fontsize=9)
    draw.curve_panel(
        axes[1], p, heights, styles[1:], "upper left", title="what is climbed"
    )
    for axis in axes:
        axis.set_xlabel("probability p of a right answer")
    return figure


def four(runs: dict[str, Sequence], panels: Sequence[tuple[str, str]]) -> Figure:
    """Columns of the four variants' histories: median over seeds, and their range."""
    rows = -(-len(panels) // 3)
    figure, axes = draw.panel_grid(len(panels), (9.6, 2.6 * rows + 0.5), 3)
    draw.metric_panels(axes, runs, panels, STYLES)
    draw.legend_outside(figure, axes[0], 4, "lower")
    return figure


def ends(runs: dict[str, Sequence[Sequence[float]]], start: float, limit: int):
    """Curves of every seed, one panel per variant, and the start as a line."""
    figure, axes = draw.panel_grid(len(runs), (9.6, 2.9), sharey=True)
    for axis, (title, curves), (colour, dash) in zip(axes, runs.items(), STYLES):
        draw.rule(axis, y=start, dash="--", width=1)
        draw.rule(axis, y=limit, width=1)
        for one in curves:
            axis.plot(range(1, len(one) + 1), one, dash, color=colour, linewidth=1.2)
        axis.set(title=title, ylim=(0, limit * 1.06))
        draw.rollout_axis(axis, 4)
    axes[0].set_ylabel("length of rambles (tokens)")
    text = {"transform": axes[0].get_yaxis_transform(), "ha": "right", "va": "top"}
    axes[0].text(0.98, start - 1, "start", color=GREY, **text)
    return figure


def pushes(responses: Sequence[str], named: dict[str, tuple]) -> Figure:
    """Push on one token, and on all tokens, of each response; two methods as bars."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3))
    for i, (axis, what) in enumerate(zip(axes, ("one token", "the whole response"))):
        bars = {label: panels[i] for label, panels in named.items()}
        draw.grouped_bars(axis, bars, METHODS, responses)
        axis.set_title(f"push on {what}")
        axis.grid(axis="x", visible=False)
        axis.margins(y=0.12)
    axes[0].legend(loc="lower left")
    return figure


def constants(lengths, per_batch, fixed) -> Figure:
    """Weight of one token from batch to batch, under two constants."""
    figure, axis = plt.subplots(figsize=(7.5, 2.7))
    steps = range(1, len(lengths) + 1)
    axis.plot(steps, per_batch, "o-", color=RED, ms=4, label="1/(B · longest of batch)")
    axis.plot(steps, fixed, "-", color=BLUE, label="1/(B · L_max)")
    axis.set(xlabel="batch", title="weight of one token")
    axis.set_ylim(0, 1.08 * max(*per_batch, *fixed))
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axis.legend(loc="lower right")
    return figure
