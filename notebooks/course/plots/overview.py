"""Figures of chapter 00: the map of the algorithms, and the world."""

import textwrap

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from course.plots import primitives as draw
from course.plots.shared import habit_shares
from course.plots.style import COLOURS, GREY, HABIT_COLOURS
from refimpl.algorithms import ALGORITHMS

PLACES = {
    "reinforce": (0, 2),
    "ppo": (1, 2),
    "grpo": (2, 2),
    "dr_grpo": (3.3, 4),
    "dapo": (3.3, 3),
    "gspo": (3.3, 2),
    "gmpo": (3.3, 1),
    "sapo": (3.3, 0),
    "cispo": (4.3, 3),
    "gspo_token": (4.3, 2),
    "rspo": (4.3, 1),
}
"""(column, row) on the map."""


def family_map() -> Figure:
    """Every algorithm of the course, and what each changes in its parent."""
    figure, axis = plt.subplots(figsize=(12, 6.4))
    width, height = 0.88, 0.86
    shape = "round,pad=0.02,rounding_size=0.06"
    for name, (x, y) in PLACES.items():
        one = ALGORITHMS[name]
        edge = {"facecolor": "white", "edgecolor": COLOURS[name], "linewidth": 2.2}
        axis.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=shape, **edge))
        middle = {"x": x + width / 2, "ha": "center", "va": "center"}
        axis.text(y=y + 0.75, s=one.title, weight="bold", **middle)
        changed = textwrap.fill(one.changed, 26, break_on_hyphens=False)
        axis.text(y=y + 0.41, s=changed, fontsize=9, linespacing=1.1, **middle)
        axis.text(y=y + 0.07, s=one.paper, fontsize=7.5, color="#555555", **middle)
        if one.parent is not None:
            px, py = PLACES[one.parent]
            start = (px + width + 0.03, py + height / 2)
            arrow = {"arrowstyle": "->", "color": GREY, "linewidth": 1.4}
            end = (x - 0.03, y + height / 2)
            axis.annotate("", xy=end, xytext=start, arrowprops=arrow)
    axis.set(xlim=(-0.1, 5.3), ylim=(-0.1, 4.95))
    axis.axis("off")
    return figure


def habit_bars(surveys: dict[str, tuple[dict, dict]]) -> Figure:
    """How often each habit is sampled (bar) and how much of that is right (filled).

    `surveys[title]` is (share of each habit, accuracy of each habit).
    """
    figure, axes = draw.panel_grid(len(surveys), (3.6 * len(surveys) + 0.6, 2.2))
    for axis, (title, (shares, accuracy)) in zip(axes, surveys.items()):
        for row, (name, share) in enumerate(shares.items()):
            colour = HABIT_COLOURS.get(name, GREY)
            axis.barh(row, share, color=colour, alpha=0.3)
            axis.barh(row, share * accuracy[name], color=colour)
            label = f"{share:.0%}, right {accuracy[name]:.0%}"
            axis.text(share + 0.02, row, label, va="center", fontsize=9)
        draw.row_labels(axis, shares)
        axis.set(xlim=(0, 1.3), xticks=[0, 0.25, 0.5, 0.75, 1], title=title)
        axis.set_xlabel("share of samples (filled: right)")
    return figure


def sft_loss(losses: list[float], skill_steps: int) -> Figure:
    """The two stages of the warm start."""
    figure, axis = plt.subplots(figsize=(7, 2.6))
    axis.plot(draw.steps(losses), losses, color=COLOURS["grpo"], linewidth=1)
    draw.rule(axis, x=skill_steps, dash="--", width=1.8)
    axis.text(skill_steps - 8, 1.5, "skill", ha="right")
    axis.text(skill_steps + 8, 1.5, "habits", ha="left")
    axis.set(xlabel="step", ylabel="loss (nats/token)", ylim=(0, 3))
    return figure


def hacking(history) -> Figure:
    """What was paid, what was learned, what was meant."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8))
    rollouts = draw.steps(history)
    left.plot(rollouts, history["reward"], color=COLOURS["cispo"], label="reward paid")
    measured = [(x, a) for x, a in zip(rollouts, history["accuracy"]) if a == a]
    left.plot(*zip(*measured), color=COLOURS["grpo"], marker=".", label="accuracy")
    left.set(ylim=(0, 1.02), title="paid against meant")
    draw.rollout_axis(left, 8)
    left.legend(loc="center right")
    habit_shares(right, history)
    right.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
