"""Figures of chapter 01: a step and its mean, the push on logits, baselines."""

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import (
    BAD,
    BLACK,
    FREE,
    GOOD,
    GREY,
    HABIT_COLOURS,
    INK,
)
from refimpl.history import History


def flip_explorer(raised, odds, luck) -> explorer.Explorer:
    """One draw's reward (left) and that of many (right) while a logit is raised.

    `odds[i]` are the habits' probabilities when the logit of the first, the only one
    that earns 1, is `raised[i]`. A draw's random number, one of `luck`, chooses a
    habit; the first of them is drawn above and at the left.
    """
    careful, names = odds[:, 0], list(HABIT_COLOURS)
    chosen = (careful[:, None] > luck).double()
    figure, axes = plt.subplot_mosaic(
        [["draw", "all"], ["one", "all"]], figsize=(8, 4.2), height_ratios=(1, 4.2)
    )
    top, left, right = axes["draw"], axes["one"], axes["all"]
    parts = [top.barh([0], [1], 0.8, color=HABIT_COLOURS[name])[0] for name in names]
    marks = [top.text(0, 0, name, ha="center", va="center") for name in names]
    needle = top.axvline(float(luck[0]), color=BLACK, lw=3, zorder=5)
    top.set(xlim=(0, 1), ylim=(-0.5, 0.5), yticks=[])
    top.set_title(f"the random number {luck[0]:.2f} picks the habit")
    top.grid(False)
    flat = {"color": GREY, "drawstyle": "steps-post"}
    left.plot(raised, chosen[:, 0], **flat)
    right.plot(raised, chosen.mean(1), **flat, lw=1.4, label=f"{len(luck)} draws")
    right.plot(raised, careful, color=FREE[0], lw=2.6, label="all draws")
    right.legend(loc="lower right", fontsize=11)
    left.set(title="one draw", ylabel="reward")
    right.set_title("average over draws")
    dots = [axis.plot([0], [0], "o", color=BLACK, ms=9)[0] for axis in (left, right)]
    tangents = [axis.plot([], [], "--", color=BLACK)[0] for axis in (left, right)]
    for axis in (left, right):
        axis.set(xlabel="logit of 'careful', raised by", ylim=(-0.08, 1.08))
        axis.set_xlim(-0.1, float(raised[-1]) + 0.1)

    def move(by: float) -> list:
        at = draw.nearest(raised, by)
        edge = 0.0
        for name, part, mark, share in zip(names, parts, marks, odds[at].tolist()):
            part.set(x=edge, width=share)
            mark.set(x=edge + share / 2, text=name if share > 0.2 else "")
            edge += share
        mean = float(careful[at])
        heights, slopes = (float(chosen[at, 0]), mean), (0.0, mean * (1 - mean))
        near = (by - 0.6, by + 0.6)
        for dot, tangent, y, slope in zip(dots, tangents, heights, slopes):
            dot.set_data([by], [y])
            tangent.set_data(near, [y - 0.6 * slope, y + 0.6 * slope])
        told = f"This draw earns {heights[0]:.0f}, slope 0; on average a draw earns "
        told += f"{mean:.2f}, slope {slopes[1]:.2f}"
        return [*parts, *marks, needle, *tangents, *dots, draw.say(figure, told)]

    return explorer.Explorer(
        figure,
        [move],
        {"by": explorer.slider("logit of 'careful', raised by", 0.0, 0.0, 3.0, 0.05)},
        name="01_step",
    )


def logit_push(cases: dict, labels) -> Figure:
    """Draw how a sampled token pushes the logits: `cases[title] = (gradient, token)`.

    The sampled token's bar is outlined.
    """
    rows = (len(cases) + 1) // 2
    figure, axes = draw.panel_grid(len(cases), (8, 2.3 * rows), 2, sharey=True)
    for axis, (title, (gradient, token)) in zip(axes, cases.items()):
        push_bars(axis, gradient, token, labels)
        axis.set_title(title)
    for axis in axes[::2]:
        axis.set_ylabel("push on the logit")
    title = "Push a rare token up and the favourite loses; "
    return draw.finding(figure, title + "push it down and the favourite gains")


def push_bars(axis, gradient, token: int, labels):
    """One bar per logit, the sampled token's outlined; returns the bars."""
    places = range(len(labels))
    bars = axis.bar(places, gradient, 0.62, linewidth=1.8)
    colour_bars(bars, gradient, token)
    axis.axhline(0, color=BLACK, linewidth=0.8)
    axis.set_xticks(places, labels)
    return bars


def colour_bars(bars, gradient, token: int) -> None:
    for i, (bar, g) in enumerate(zip(bars, gradient)):
        bar.set(height=g, facecolor=GOOD if g > 0 else BAD)
        bar.set_edgecolor(BLACK if i == token else "none")


def baseline_explorer(
    grid, noise, marks: dict, chosen: dict, pushes: Callable, mean: float
) -> explorer.Explorer:
    """Noise against the baseline (left); the push of every draw at `b` (right).

    `marks[label]` is a baseline worth naming, `chosen[arm]` the arm's probability,
    and `pushes(b)` the push on 'careful' of each arm's draw.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.9))
    left.plot(grid, noise, color=FREE[1])
    for (label, x), dash, side in zip(marks.items(), ("--", ":"), ("left", "right")):
        left.axvline(x, 0, 0.72, color=INK, ls=dash, lw=1.4)
        text, beside = f"{label}\n{x:.2f}", 0.05 if side == "left" else -0.05
        left.text(x + beside, 1.4, text, ha=side, va="top", fontsize=11)
    (here,) = left.plot([0], [0], "o", color=BLACK, markersize=9)
    left.set(xlabel="baseline $b$", ylabel="variance of one draw", ylim=(0, 1.95))
    dots = []
    for row, (arm, p) in enumerate(chosen.items()):
        colour, size = HABIT_COLOURS[arm], 8 + 26 * float(p)
        dots += right.plot([0], [row], "o", color=colour, markersize=size)
    right.axvline(mean, color=BLACK, lw=1.6)
    right.text(mean + 0.05, -0.55, "mean: the gradient", va="center", fontsize=11)
    draw.row_labels(right, [f"{arm}\n({p:.0%})" for arm, p in chosen.items()])
    right.set(xlabel="push on 'careful' from one draw", xlim=(-1.1, 1.6))
    right.set_ylim(2.6, -0.9)

    def move(b: float) -> list:
        variance = noise[draw.nearest(grid, b)]
        here.set_data([b], [variance])
        for dot, x in zip(dots, pushes(b)):
            dot.set_xdata([x])
        told = f"b = {b:.2f}: one draw has variance {variance:.2f}"
        return [here, *dots, draw.say(figure, told)]

    return explorer.Explorer(
        figure,
        [move],
        {"b": explorer.slider("baseline b", 0.0, -1.0, 2.0, 0.025)},
        prediction=stakes.Prediction(
            "At b = 1, which draws push 'careful' up?",
            ("all three", "only guess and ramble", "none"),
            "only guess and ramble",
            "Guess and ramble are pushed down far more than a careful answer.",
        ),
        name="01_baseline",
    )


def learned(histories: Sequence[History], title: str) -> Figure:
    """The share of each habit, the reward and the loss, side by side."""
    figure, axes = plt.subplots(1, 3, figsize=(8, 3.3))
    for (name, colour), dash in zip(HABIT_COLOURS.items(), ("-", "--", "-.")):
        runs = [h[f"habit/{name}"] for h in histories]
        draw.band(axes[0], runs, colour, name, dash)
    axes[0].legend(loc="center right", fontsize=10)
    for axis, name, colour in ((axes[1], "reward", BLACK), (axes[2], "loss", FREE[0])):
        draw.band(axis, [h[name] for h in histories], colour)
    for axis, name in zip(axes, ("share of each habit", "reward", "loss")):
        axis.set_title(name)
        draw.rollout_axis(axis, 4)
    for axis in axes[:2]:
        axis.set_ylim(-0.02, 1.02)
    draw.rule(axes[2], y=0, dash="-", width=1)
    return draw.finding(figure, title)
