"""Figures of chapter 03: groups, dead groups, answers before and after RL, PPO."""

import math
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import (
    BAD,
    COLOURS,
    FREE,
    GOOD,
    GREY,
    HABIT_COLOURS,
    INK,
    METHOD_DASHES,
    RIGHT,
    WRONG,
    looks_of,
)
from refimpl.history import History
from refimpl.tasks.arithmetic import habit

SHARE = "share of right answers  $p$"


def one_group(
    texts: Sequence[str],
    rewards: Sequence[float],
    advantages: Sequence[float],
    title: str,
) -> Figure:
    """Responses to one prompt, what each was paid, and its advantage."""
    figure, axis = plt.subplots(figsize=(8, 0.36 * len(texts) + 1.5))
    for row, a in enumerate(advantages):
        axis.barh(row, a, color=GOOD if a > 0 else BAD, height=0.72)
        side = {"ha": "left" if a > 0 else "right", "va": "center", "fontsize": 12}
        axis.text(
            a + math.copysign(0.06, a), row, f"{a:+.2f}".replace("-", "−"), **side
        )
    rows = [f"{shortened(text)}   R = {paid:.0f}" for text, paid in zip(texts, rewards)]
    draw.row_labels(axis, rows, family="monospace", fontsize=12)
    for label, paid in zip(axis.get_yticklabels(), rewards):
        label.set_color(RIGHT if paid else INK)
    draw.rule(axis, x=0, dash="-", width=1)
    low, high = min(0, *advantages), max(0, *advantages)
    axis.set(xlim=(low - 0.75, high + 0.75), xlabel=r"advantage $\hat{A}$")
    axis.grid(False)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    return draw.finding(figure, title)


def shortened(text: str, length: int = 26) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def dead_groups(
    surveys: dict[str, dict[int, tuple[float, float]]], title: str, note: str
) -> Figure:
    """Share of groups that are all wrong or all right, by number of terms.

    `surveys[title][terms]` is (share all wrong, share all right); `note` says how many
    groups there were.
    """
    figure, axes = draw.panel_grid(len(surveys), (8, 3.5), sharey=True)
    for axis, (name, by_terms) in zip(axes, surveys.items()):
        terms = list(by_terms)
        wrong, right = zip(*by_terms.values())
        axis.bar(terms, wrong, color=WRONG, label="all wrong")
        axis.bar(terms, right, bottom=wrong, color=RIGHT, label="all right")
        for x, share in zip(terms, map(sum, by_terms.values())):
            axis.text(x, share + 0.02, f"{share:.0%}", ha="center", fontsize=12)
        axis.set(title=name, xlabel="terms in the sum", ylim=(0, 1), xticks=terms)
        axis.grid(False, axis="x")
    axes[0].set_ylabel("share of groups")
    draw.heading(figure, axes[0], title)
    return draw.caption(figure, note)


def group_explorer(advantages: Callable[[int, int], tuple]) -> explorer.Explorer:
    """Draw (left) the advantages in a group with k of G right, and (right) its pull.

    `advantages(k, size)` gives (Ã, Â), without and with the std, as lists.
    """
    most = 16
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.9))
    bars = left.bar(range(1, most + 1), [0.0] * most, width=0.8)
    marks = left.plot([], [], "_", color=INK, markersize=11, markeredgewidth=2)
    draw.rule(left, y=0, dash="-", width=1)
    label = left.text(most + 0.4, 3.6, "", ha="right", va="top")
    left.set(xlim=(0.3, most + 0.7), ylim=(-4.2, 4.2), xlabel="response")
    left.set(title=r"bars: $\hat{A}$; dashes: without the std", xticks=[1, 4, 8, 16])
    lines, dots = [], []
    for name, text in (("grpo", "with the std"), ("dr_grpo", "without")):
        shade = COLOURS[name]
        lines += right.plot([], [], color=shade, label=text)
        lines[-1].set_linestyle(METHOD_DASHES[name])
        dots += right.plot([], [], "o", color=shade, markersize=9)
    right.set(title=r"pull of the prompt, $\Sigma |A| / G$", xlabel=SHARE)
    right.set(xlim=(-0.03, 1.03), ylim=(0, 1.05))
    right.legend(loc="lower center")
    tables = {
        size: [advantages(k, size) for k in range(size + 1)]
        for size in range(2, most + 1)
    }

    def move(k: int, size: int) -> list:
        k = min(k, size)
        plain, scaled = tables[size][k]
        for i, bar in enumerate(bars):
            bar.set_height(scaled[i] if i < size else 0.0)
            bar.set_facecolor(GOOD if i < k else BAD)
        marks[0].set_data(range(1, size + 1), plain)
        if k in (0, size):
            label.set_text("every advantage is 0")
            said = f"{k} of {size} right: there is nothing to learn from"
        else:
            values = f"right {scaled[0]:+.2f}, wrong {scaled[-1]:+.2f}"
            label.set_text(values.replace("-", "−"))
            said = f"{k} of {size} right: each right answer is pushed {scaled[0]:+.2f}"
        title = draw.say(figure, said)
        share = [n / size for n in range(size + 1)]
        for line, dot, side in zip(lines, dots, (1, 0)):
            pulls = [sum(map(abs, pair[side])) / size for pair in tables[size]]
            line.set_data(share, pulls)
            dot.set_data([share[k]], [pulls[k]])
        return [*bars, *marks, label, *lines, *dots, title]

    controls = {
        "k": explorer.slider("right answers k, at most G", 1, 0, most, 1),
        "size": explorer.slider("group size G", 8, 2, most, 1),
    }
    return explorer.Explorer(
        figure,
        [move],
        controls,
        prediction=stakes.Prediction(
            "Is a right answer pushed harder when 1 of 8 is right, or when 4 are?",
            ("when 1 is right", "when 4 are right", "as hard"),
            "when 1 is right",
            "It stands further from the mean of its group.",
        ),
        name="03_group",
    )


Answers = Sequence[tuple[str, Sequence[tuple[str, bool]]]]


def answers(before: Answers, after: Answers, title: str) -> Figure:
    """The same prompts, answered by the policy before and after training.

    Each side is [(prompt, [(answer, right), …]), …]. The block before an answer has
    its habit's colour.
    """
    each = len(before[0][1])
    rows = len(before) * (each + 1.25)
    height = 0.27 * rows + 1.2
    figure, axis = draw.canvas(8, height)
    axis.set_ylim(height, 0)
    figure.suptitle(title, x=0.1 / 8, y=1 - 0.22 / height, ha="left", va="center")
    x = 0.1
    for name, shade in HABIT_COLOURS.items():
        axis.add_patch(plt.Rectangle((x, 0.5), 0.2, 0.2, color=shade))
        axis.text(x + 0.28, 0.6, name, va="center")
        x += 1.35
    axis.text(x + 0.2, 0.6, "✓ right", color=RIGHT, va="center", weight="bold")
    axis.text(x + 1.2, 0.6, "✗ wrong", color=WRONG, va="center", weight="bold")
    for x, side, name in ((0.1, before, "before"), (4.1, after, "after")):
        axis.text(x, 1.02, name, va="center", weight="bold", fontsize=13)
        y = 1.32
        for prompt, given in side:
            axis.text(x, y, prompt, va="center", color="#555555", family="monospace")
            for text, right in given:
                y += 0.27
                shade = HABIT_COLOURS.get(habit(text), GREY)
                axis.add_patch(plt.Rectangle((x, y - 0.1), 0.12, 0.2, color=shade))
                mark = ("✓", RIGHT) if right else ("✗", WRONG)
                axis.text(
                    x + 0.18, y, mark[0], color=mark[1], va="center", weight="bold"
                )
                look = {"va": "center", "family": "monospace", "fontsize": 11.5}
                axis.text(x + 0.42, y, shortened(text, 33), **look)
            y += 1.25 * 0.27
    asked = ", ".join(prompt for prompt, _ in before)
    axis.set_ylabel(f"answers to {asked} before and after")  # for the words: not drawn
    return figure


def against_ppo(
    named: Mapping[str, Sequence[History]],
    explained: Mapping[str, draw.Runs],
    title: str,
) -> Figure:
    """Draw the rewards (left) and how much the baselines predict (right)."""
    figure, (left, right) = draw.panel_grid(2, (8, 3.6))
    panels = (("reward", "reward (training)"),)
    draw.metric_panels([left], named, panels, looks_of(named))
    left.set_ylim(0, 1)
    left.legend(loc="lower right")
    draw.rule(right, y=0, width=1)
    looks = (COLOURS["ppo"], "-"), (FREE[1], "--")
    for (label, runs), (shade, dash) in zip(explained.items(), looks):
        draw.band(right, runs, shade, label, dash)
    right.set(ylim=(-0.8, 1), title="variance of the reward explained by")
    right.legend(loc="lower right", ncols=2)
    draw.rollout_axis(right, 8)
    return draw.finding(figure, title)
