"""Figures of chapter 00: the map of the algorithms, and the world."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import MaxNLocator

from course.plots import COLOURS, GREY, HABIT_COLOURS

# name, title, (column, row), parent, what it changes in the parent
FAMILY = (
    ("reinforce", "REINFORCE", (0, 2), None, "reward − baseline,\ntimes ∇log π"),
    ("ppo", "PPO", (1, 2), "reinforce", "+ ratio r, one-sided clip\n+ critic, GAE"),
    ("grpo", "GRPO", (2, 2), "ppo", "critic → group's mean, std;\nmean per response"),
    ("dr_grpo", "Dr. GRPO", (3.3, 4), "grpo", "no std, no 1/|o|"),
    (
        "dapo",
        "DAPO",
        (3.3, 3),
        "grpo",
        "clip-higher, live groups,\ntoken mean, length ramp",
    ),
    ("gspo", "GSPO", (3.3, 2), "grpo", "one ratio a response:\ngeometric mean"),
    ("gmpo", "GMPO", (3.3, 1), "grpo", "geometric mean of\nclipped token ratios"),
    ("sapo", "SAPO", (3.3, 0), "grpo", "hard clip → soft gate\nper token"),
    ("cispo", "CISPO", (4.4, 3), "dapo", "clip the weight,\nkeep every gradient"),
    ("gspo_token", "GSPO-token", (4.4, 2), "gspo", "same value, one Â\nper token"),
    ("rspo", "RSPO", (4.4, 1), "gmpo", "routing drift scales\nthe response down"),
)


def family_map() -> Figure:
    """Every algorithm of the course, and what each changes in its parent."""
    figure, axis = plt.subplots(figsize=(12, 5.6))
    width, height = 0.86, 0.72
    place = {name: (column, row) for name, _, (column, row), _, _ in FAMILY}
    for name, title, (x, y), parent, changed in FAMILY:
        box = FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0.02,rounding_size=0.06",
            facecolor="white",
            edgecolor=COLOURS[name],
            linewidth=2.2,
        )
        axis.add_patch(box)
        middle = x + width / 2
        axis.text(middle, y + 0.54, title, ha="center", va="center", weight="bold")
        axis.text(middle, y + 0.22, changed, ha="center", va="center", fontsize=9.5)
        if parent is not None:
            px, py = place[parent]
            axis.annotate(
                "",
                xy=(x - 0.03, y + height / 2),
                xytext=(px + width + 0.03, py + height / 2),
                arrowprops={"arrowstyle": "->", "color": GREY, "linewidth": 1.4},
            )
    axis.set(xlim=(-0.1, 5.35), ylim=(-0.15, 4.9))
    axis.axis("off")
    return figure


def habit_bars(surveys: dict[str, tuple[dict, dict]]) -> Figure:
    """How often each habit is sampled (bar) and how much of that is right (filled).

    `surveys[title]` is (share of each habit, accuracy of each habit).
    """
    size = (3.6 * len(surveys) + 0.6, 2.2)
    figure, axes = plt.subplots(1, len(surveys), figsize=size, squeeze=False)
    for axis, (title, (shares, accuracy)) in zip(axes[0], surveys.items()):
        for row, (name, share) in enumerate(shares.items()):
            colour = HABIT_COLOURS.get(name, GREY)
            axis.barh(row, share, color=colour, alpha=0.3)
            axis.barh(row, share * accuracy[name], color=colour)
            label = f"{share:.0%}, right {accuracy[name]:.0%}"
            axis.text(share + 0.02, row, label, va="center", fontsize=9)
        axis.set_yticks(range(len(shares)), shares)
        axis.invert_yaxis()
        axis.set(xlim=(0, 1.3), xticks=[0, 0.25, 0.5, 0.75, 1], title=title)
        axis.set_xlabel("share of samples (filled: right)")
    return figure


def sft_loss(losses: list[float], skill_steps: int) -> Figure:
    """The two stages of the warm start."""
    figure, axis = plt.subplots(figsize=(7, 2.6))
    axis.plot(range(1, len(losses) + 1), losses, color=COLOURS["grpo"], linewidth=1)
    axis.axvline(skill_steps, color=GREY, linestyle="--")
    axis.text(skill_steps - 8, 1.5, "skill", ha="right")
    axis.text(skill_steps + 8, 1.5, "habits", ha="left")
    axis.set(xlabel="step", ylabel="loss (nats/token)", ylim=(0, 3))
    return figure


def hacking(history) -> Figure:
    """What was paid, what was learned, what was meant."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8))
    steps = range(1, len(history) + 1)
    left.plot(steps, history["reward"], color=COLOURS["cispo"], label="reward paid")
    right_answers = [(x, a) for x, a in zip(steps, history["accuracy"]) if a == a]
    left.plot(*zip(*right_answers), color=COLOURS["grpo"], marker=".", label="accuracy")
    for axis in (left, right):
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    left.set(xlabel="rollout", ylim=(0, 1.02), title="paid against meant")
    left.legend(loc="center right")
    for name, colour in HABIT_COLOURS.items():
        right.plot(steps, history[f"habit/{name}"], color=colour, label=name)
    right.set(xlabel="rollout", ylim=(-0.02, 1.02), title="share of each habit")
    right.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
