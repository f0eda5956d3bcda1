"""Figures of chapter 00: one training step, the world, a reward that is hacked.

The pictures that are not charts are drawn on a canvas whose unit is the inch.
"""

import itertools
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.kit.plots import primitives as draw
from course.kit.plots.style import (
    BLACK,
    FREE,
    GREY,
    HABIT_COLOURS,
    INK,
    RIGHT,
)
from refimpl.history import History

SMALL = "#555555"  # text beside what matters more


def training_step() -> Figure:
    """Draw one training step: its parts, their shapes, and their names in the code."""
    figure, axis = draw.canvas(8.2, 5.9)
    title = "One rollout is collected, then used for $K$ updates"
    figure.suptitle(title, x=0.008, y=5.85 / 5.9, ha="left", va="top")
    wide, high, upper, lower = 1.66, 0.98, 3.86, 0.98
    x = [0.22 + k * 2.03 for k in range(4)]
    _room(axis, 3.7, 1.7, "collect", r"once per rollout, by the policy $\pi_{old}$")
    _room(
        axis, 0.1, 2.34, "update", r"$K$ times per rollout, of the policy $\pi_\theta$"
    )
    made = (
        ("prompts", "$P$ strings"),
        ("$G$ responses each", r"($B$, $T$),  $B = P\,G$"),
        ("verifier", "rewards ($B$,)"),
        (r"advantages $\hat{A}$", "($B$,) or ($B$, $T$)"),
    )
    learned = (
        ("optimiser step", r"a new $\pi_\theta$"),
        ("loss", "one number"),
        ("ratio $r$, gate $g$,\nweight $w$", "each ($B$, $T$)"),
        (r"$\pi_\theta$ scores again", "logp ($B$, $T$)"),
    )
    for place, *both in zip(x, made, learned):
        for y, words in zip((upper, lower), both):
            _node(axis, place, y, wide, high, *words)
    for left, right in itertools.pairwise(x):
        y = upper + high / 2
        draw.arrow(axis, (left + wide, y), (right, y), colour=INK)
        y = lower + high / 2
        draw.arrow(axis, (right, y), (left + wide, y), colour=INK)
    first, second, last = (place + wide / 2 for place in (x[0], x[1], x[3]))
    draw.arrow(axis, (last, upper), (last, lower + high), colour=INK)
    ways = (first, lower), (first, 0.44), (last, 0.44), (last, lower)
    draw.arrow(axis, *ways, colour=FREE[1])
    ways = (first, lower + high), (first, 3.2), (second, 3.2), (second, upper)
    draw.arrow(axis, *ways, colour=FREE[0])
    mono = {"family": "monospace", "fontsize": 11, "va": "center", "ha": "right"}
    axis.text(last - 0.14, 3.19, "Batch(rollout, mask,", **mono)
    axis.text(last - 0.14, 2.95, "old_logp, advantages)", **mono)
    named = "Tokens(logp, old_logp, advantages, mask, weight)"
    axis.text(last - 0.14, 0.71, named, **mono)
    says = {"va": "center", "fontsize": 11.5}
    axis.text(first + 0.14, 0.27, "next mini-batch", color=FREE[1], **says)
    after = r"after $K$ updates  $\pi_{old} \leftarrow \pi_\theta$"
    axis.text(first + 0.14, 2.9, after, color=FREE[0], **says)
    return figure


def _room(axis, y, height, name, about) -> None:
    """A part of the code: its name, and how often it is called."""
    draw.box(axis, 0.06, y, 8.08, height, "none", "#EEF1F5", zorder=0)
    at = {"y": y + height - 0.27, "va": "center"}
    look = {"family": "monospace", "weight": "bold", "fontsize": 14}
    axis.text(0.24, s=name, **look, **at)
    axis.text(1.22, s=about, fontsize=11.5, color=SMALL, **at)


def _node(axis, x, y, width, height, name, shape) -> None:
    """What a step makes, and its shape."""
    draw.box(axis, x, y, width, height, linewidth=1.4)
    at = {"x": x + width / 2, "ha": "center", "va": "center"}
    axis.text(y=y + 0.64 * height, s=name, fontsize=12, linespacing=1.15, **at)
    axis.text(y=y + 0.22 * height, s=shape, fontsize=11.5, color=SMALL, **at)


def habit_bars(survey, title: str, footer: str) -> Figure:
    """How often each habit is sampled (bar) and how much of that is right (filled).

    `survey` is a `course.kit.habits.Survey`.
    """
    figure, axis = plt.subplots(figsize=(8, 2.5))
    longest = max(survey.shares.values())
    for row, (habit, share) in enumerate(survey.shares.items()):
        ink, right = HABIT_COLOURS.get(habit, GREY), survey.accuracies[habit]
        axis.barh(row, share, color=ink, alpha=0.3)
        axis.barh(row, share * right, color=ink)
        label = f"{share:.0%} of answers, {right:.0%} of them right"
        axis.text(share + 0.02 * longest, row, label, va="center", fontsize=12)
    draw.row_labels(axis, survey.shares)
    ticks = [0.1 * i for i in range(int(10 * longest) + 2)]
    axis.set(xlim=(0, 1.75 * longest), xticks=ticks)
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    axis.spines["bottom"].set_bounds(0, ticks[-1])
    axis.set_xlabel("share of answers (filled: right)", loc="left")
    axis.grid(False)
    draw.finding(figure, title)
    return draw.caption(figure, footer)


def hacking(runs: Sequence[History], start: float, title: str) -> Figure:
    """What was paid, what was meant, and what was learned.

    `start` is the accuracy before the first rollout.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.8))
    draw.band(left, [run["reward"] for run in runs], BLACK, "reward paid", "--")
    accuracies = [[start, *run["accuracy"]] for run in runs]
    after = range(len(accuracies[0]))
    draw.band(left, accuracies, RIGHT, "accuracy", "o-", x=after, ms=4)
    left.set(ylim=(-0.02, 1.02), title="what was paid, what was meant")
    for name, colour in HABIT_COLOURS.items():
        draw.band(right, [run[f"habit/{name}"] for run in runs], colour, name)
    right.set(title="share of each habit", ylim=(-0.02, 1.02))
    for axis in (left, right):
        draw.rollout_axis(axis)
        axis.legend(loc="best")
    return draw.finding(figure, title)
