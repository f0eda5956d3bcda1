"""Figures of chapter 04: weights against length and difficulty, lengths in training."""

import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from course.plots import BLACK, BLUE, GREEN, GREY, HABIT_COLOURS, ORANGE, RED

RIGHT, WRONG = GREEN, ORANGE
METHODS = (BLUE, RED)  # with the division, without


def _known(values: Sequence[float]) -> list[float]:
    return [x for x in values if x == x]  # NaN where no answer was of the kind


def _band(axis, runs, colour: str, label: str, dash: str = "-") -> None:
    """Median over runs, and their range."""
    table = [_known(column) for column in zip(*runs)]
    steps = [i for i, column in enumerate(table, 1) if column]
    table = [column for column in table if column]
    middle = [statistics.median(column) for column in table]
    axis.plot(steps, middle, dash, color=colour, label=label)
    low, high = [min(c) for c in table], [max(c) for c in table]
    axis.fill_between(steps, low, high, color=colour, alpha=0.13, linewidth=0)
    axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def growth(right, wrong, crowds: dict[str, dict[str, float]]) -> Figure:
    """Lengths of right and wrong answers, and which habits the wrong ones have.

    `crowds[when][habit]` is a share of the wrong answers.
    """
    figure, (left, second) = plt.subplots(
        1, 2, figsize=(9, 3), gridspec_kw={"width_ratios": [1.15, 1]}
    )
    _band(left, wrong, WRONG, "wrong answers", "--")
    _band(left, right, RIGHT, "right answers")
    left.set(title="length (tokens)", xlabel="rollout")
    left.set_ylim(bottom=0)
    left.legend(loc="lower right")
    for row, shares in enumerate(crowds.values()):
        start = 0.0
        for habit, share in shares.items():
            second.barh(
                row,
                share,
                left=start,
                height=0.6,
                color=HABIT_COLOURS.get(habit, GREY),
                label=habit if row == 0 else None,
            )
            if share > 0.08:
                middle = start + share / 2
                second.text(middle, row, f"{share:.0%}", ha="center", va="center")
            start += share
    second.set_yticks(range(len(crowds)), crowds)
    second.invert_yaxis()
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
        totals = [n * w for n, w in zip(lengths, values)]
        axes[1].plot(lengths, totals, label=label, **style)
    axes[0].set_title("weight of one token")
    axes[1].set_title("weight of the whole response")
    for axis in axes:
        axis.set_xlabel("response length |o| (tokens)")
        axis.set_ylim(bottom=0)
    axes[0].legend(loc="upper right")
    return figure


def walk(named: dict[str, dict[str, Sequence[float]]], limit: int) -> Figure:
    """Mean lengths of right and wrong responses while the expected loss is followed."""
    size = (4.5 * len(named), 2.9)
    figure, axes = plt.subplots(1, len(named), figsize=size, sharey=True)
    for axis, (title, lengths) in zip(axes, named.items()):
        axis.axhline(limit, color=GREY, linewidth=1, linestyle=":")
        axis.plot(lengths["right"], color=RIGHT, label="right responses")
        axis.plot(lengths["wrong"], "--", color=WRONG, label="wrong responses")
        axis.set(title=title, xlabel="step")
        axis.set_ylim(0, limit * 1.08)
    axes[0].set_ylabel("mean length (tokens)")
    axes[0].annotate(
        "limit", (0.01, limit), xycoords=("axes fraction", "data"), va="top", color=GREY
    )
    axes[-1].legend(loc="upper right", bbox_to_anchor=(1, 0.9))
    return figure


def difficulty(size: int, plain, scaled, chosen: int | None = None) -> Figure:
    """What a prompt weighs beside the heaviest, and the factor that the std adds.

    `chosen` marks one k, with its Σ|A|.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    share = [k / size for k in range(size + 1)]
    for values, colour, mark, label in (
        (scaled, BLUE, "o", "with the std (GRPO)"),
        (plain, RED, "^", "without (Dr. GRPO)"),
    ):
        shown = [v / max(values) for v in values]
        left.plot(share, shown, color=colour, marker=mark, markersize=5, label=label)
    left.set(title="weight, the heaviest prompt = 1", xlabel="share right  k/G")
    left.set_ylim(0, 1.05)
    left.legend(loc="lower center")
    inside = [x for x, p in zip(share, plain) if p]
    boost = [s / p for p, s in zip(plain, scaled) if p]
    boost = [b / min(boost) for b in boost]
    right.plot(inside, boost, color=BLACK, marker="o", markersize=5)
    right.annotate(
        "0 and G right: no push,\nnothing to boost", (0.5, 0.2), ha="center", color=RED
    )
    right.set(title="boost by the std, smallest = 1", xlabel="share right  k/G")
    right.set_ylim(bottom=0)
    right.set_xlim(-0.03, 1.03)
    if chosen is not None:
        for axis in (left, right):
            axis.axvline(chosen / size, color=GREY, linewidth=1, linestyle="--")
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
    for (label, values), (colour, dash) in zip(pulls.items(), styles):
        axes[0].plot(p, values, dash, color=colour, label=label)
    for (label, values), (colour, dash) in zip(heights.items(), (styles[1], styles[2])):
        axes[1].plot(p, values, dash, color=colour, label=label)
    axes[0].set_title("expected pull on the log-odds")
    axes[0].set_ylim(0, 0.8)
    axes[0].legend(loc="upper center", ncols=2, fontsize=9)
    axes[1].set_title("what is climbed")
    axes[1].legend(loc="upper left")
    for axis in axes:
        axis.set_xlabel("probability p of a right answer")
    return figure


STYLES = ((BLUE, "-"), (BLUE, ":"), (RED, "-"), (RED, ":"))


def four(runs: dict[str, Sequence], panels: Sequence[tuple[str, str]]) -> Figure:
    """Columns of the four variants' histories: median over seeds, and their range."""
    figure, axes = plt.subplots(
        -(-len(panels) // 3), 3, figsize=(9.6, 2.6 * -(-len(panels) // 3) + 0.5)
    )
    for axis, (column, title) in zip(axes.flat, panels):
        for (label, histories), (colour, dash) in zip(runs.items(), STYLES):
            _band(axis, [h[column] for h in histories], colour, label, dash)
        axis.set(title=title, xlabel="rollout")
        axis.set_ylim(bottom=0)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def ends(runs: dict[str, Sequence[Sequence[float]]], start: float, limit: int):
    """Curves of every seed, a panel each, and the start as a line."""
    figure, axes = plt.subplots(1, len(runs), figsize=(9.6, 2.9), sharey=True)
    for axis, (title, curves), (colour, dash) in zip(axes, runs.items(), STYLES):
        axis.axhline(start, color=GREY, linewidth=1, linestyle="--")
        axis.axhline(limit, color=GREY, linewidth=1, linestyle=":")
        for one in curves:
            axis.plot(range(1, len(one) + 1), one, dash, color=colour, linewidth=1.2)
        axis.set(title=title, xlabel="rollout")
        axis.set_ylim(0, limit * 1.06)
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes[0].set_ylabel("length of rambles (tokens)")
    axes[0].text(0.98, start - 1, "start", transform=axes[0].get_yaxis_transform(),
                 ha="right", va="top", color=GREY)  # fmt: skip
    return figure


def pushes(responses: Sequence[str], named: dict[str, tuple]) -> Figure:
    """Push on one token, and on all tokens, of each response; two methods as bars."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3))
    for offset, (label, panels), colour in zip((-0.2, 0.2), named.items(), METHODS):
        for axis, values in zip(axes, panels):
            place = [i + offset for i in range(len(values))]
            axis.bar(place, values, width=0.38, color=colour, label=label)
    for axis, title in zip(axes, ("one token", "the whole response")):
        axis.axhline(0, color=BLACK, linewidth=0.8)
        axis.set_xticks(range(len(responses)), responses)
        axis.set_title(f"push on {title}")
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
