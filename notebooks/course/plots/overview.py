"""Figures of chapter 00: maps of methods, networks and one training step; the world.

The pictures that are not charts are drawn on a canvas whose unit is the inch.
"""

import itertools
import re
import textwrap
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from course.plots import primitives as draw
from course.plots import style
from course.plots.shared import as_runs, habit_shares
from course.plots.style import (
    BAD,
    BLACK,
    COLOURS,
    FREE,
    GOOD,
    GREY,
    HABIT_COLOURS,
    INK,
    PAPER,
    RIGHT,
)
from refimpl.algorithms import ALGORITHMS
from refimpl.curves import curve
from refimpl.history import History

PLACES = {
    "reinforce": (0, 4, 1),
    "ppo": (0, 3, 2),
    "grpo": (0, 2, 3),
    "dr_grpo": (1, 4, 4),
    "gspo": (1, 3, 5),
    "dapo": (1, 2, 6),
    "gmpo": (1, 1, 8),
    "sapo": (1, 0, 10),
    "gspo_token": (2, 3, 5),
    "cispo": (2, 2, 7),
    "rspo": (2, 1, 9),
}
"""(column, row from below, chapter) on the map."""

SMALL = "#555555"  # text beside what matters more


def _box(axis, x, y, width, height, edge=INK, face=PAPER, **look) -> None:
    shape = "round,pad=0,rounding_size=0.09"
    look = {"linewidth": 1.8, "zorder": 2} | look
    look |= {"facecolor": face, "edgecolor": edge}
    axis.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=shape, **look))


def _arrow(axis, *points: tuple[float, float], colour=GREY, width=1.8) -> None:
    """A line through the points, with a head at the last."""
    axis.plot(*zip(*points), color=colour, linewidth=width, zorder=1)
    head = {"arrowstyle": "-|>", "color": colour, "linewidth": width}
    head |= {"shrinkA": 0, "shrinkB": 0, "mutation_scale": 13}
    axis.annotate("", xy=points[-1], xytext=points[-2], arrowprops=head, zorder=1)


def _thumbnail(axis, name: str, x, y, width, height, top=2.6):
    """A method's gradient coefficient c = g r against r, for both signs of Â."""
    inset = axis.inset_axes([x, y, width, height], transform=axis.transData, zorder=4)
    for sign, ink, dash in ((1, GOOD, "-"), (-1, BAD, (0, (2.2, 1.1)))):
        one = curve(name, sign)
        draw.line(inset, one.ratio, one.coefficient, ink, dash, lw=1.7)
    inset.axvline(1, color=GREY, linewidth=0.7, linestyle=":")
    inset.set(xlim=(0, top), ylim=(-0.12, top), xticks=[], yticks=[])
    inset.set_facecolor(PAPER)
    inset.grid(False)
    inset.spines[["left", "bottom"]].set_linewidth(0.8)
    return inset


def family_map() -> Figure:
    """Every algorithm of the course, what it changes in its parent, and its gate."""
    figure, axis = draw.canvas(8.2, 6.34)
    wide, high, step, gutter = 2.54, 1.12, 1.28, 0.25
    for name, (column, row, chapter) in PLACES.items():
        one = ALGORITHMS[name]
        x, y = 0.04 + column * (wide + gutter), 0.06 + row * step
        _box(axis, x, y, wide, high, COLOURS[name])
        year = re.search(r"\b(19|20)\d\d\b", one.paper).group()
        top = {"y": y + high - 0.19, "va": "center"}
        axis.text(x + 0.1, s=one.title, weight="bold", fontsize=12.5, **top)
        about = f"{year} · ch. {chapter:02d}"
        axis.text(x + wide - 0.09, s=about, ha="right", fontsize=9, color=SMALL, **top)
        changed = textwrap.fill(one.changed, 27, break_on_hyphens=False)
        middle = {"va": "center", "fontsize": 8.8, "linespacing": 1.12}
        axis.text(x + 0.1, y + 0.52, changed, **middle)
        axis.text(x + 0.1, y + 0.13, one.paper, fontsize=7.3, color=SMALL, va="center")
        _thumbnail(axis, name, x + wide - 0.66, y + 0.27, 0.56, 0.52)
        if one.parent is not None:
            _branch(axis, PLACES[one.parent], (column, row), wide, high, step, gutter)
    x, top = 0.04 + 2 * (wide + gutter), 0.06 + 4 * step + high
    heading = "What each method changes in its parent, and what it leaves of a token's "
    heading = textwrap.fill(heading + "gradient", 22)
    look = {"fontsize": 13.5, "weight": "bold", "linespacing": 1.25}
    axis.text(x, top, heading, va="top", **look)
    _key(axis, 0.1, 0.1)
    return figure


def _branch(axis, parent, child, wide, high, step, gutter) -> None:
    """From the parent's edge to the child's: down a column, or across a gutter."""
    (px, py, _), (cx, cy) = parent, child
    left, below = 0.04 + px * (wide + gutter), 0.06 + py * step
    if px == cx:
        x = left + wide / 2
        _arrow(axis, (x, below), (x, below - step + high))
        return
    x, y = left + wide, below + high / 2
    bend, to = x + 0.09, 0.06 + cy * step + high / 2
    _arrow(axis, (x, y), (bend, y), (bend, to), (x + gutter, to))


def _key(axis, x: float, y: float) -> None:
    """How to read a thumbnail."""
    key = _thumbnail(axis, "grpo", x + 0.3, y + 0.42, 1.75, 1.35)
    key.set_xlabel("ratio $r$", fontsize=11, labelpad=2)
    key.set_ylabel("coefficient $c = g\\,r$", fontsize=11, labelpad=3)
    key.set_xticks([1], ["1"], fontsize=10)
    key.tick_params(length=2, pad=1)
    says = {"fontsize": 12, "va": "center", "ha": "right", "zorder": 5}
    axis.text(x + 1.5, y + 1.6, r"$\hat{A} < 0$", color=BAD, **says)
    axis.text(x + 2.05, y + 0.7, r"$\hat{A} > 0$", color=GOOD, **says)


def training_step() -> Figure:
    """One training step: what is made of what, its shape, and its name in the code."""
    figure, axis = draw.canvas(8.2, 5.5)
    wide, high, upper, lower = 1.66, 0.98, 3.86, 0.98
    x = [0.22 + k * 2.03 for k in range(4)]
    _room(axis, 3.7, 1.7, "collect", r"once per rollout, by the policy $\pi_{old}$")
    _room(
        axis,
        0.1,
        2.34,
        "update",
        r"$K$ times per rollout, of the policy $\pi_\theta$",
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
        _arrow(axis, (left + wide, y), (right, y), colour=INK)
        y = lower + high / 2
        _arrow(axis, (right, y), (left + wide, y), colour=INK)
    first, second, last = (place + wide / 2 for place in (x[0], x[1], x[3]))
    _arrow(axis, (last, upper), (last, lower + high), colour=INK)
    ways = (first, lower), (first, 0.44), (last, 0.44), (last, lower)
    _arrow(axis, *ways, colour=FREE[1])
    ways = (first, lower + high), (first, 3.2), (second, 3.2), (second, upper)
    _arrow(axis, *ways, colour=FREE[0])
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
    _box(axis, 0.06, y, 8.08, height, "none", "#EEF1F5", zorder=0)
    at = {"y": y + height - 0.27, "va": "center"}
    look = {"family": "monospace", "weight": "bold", "fontsize": 14}
    axis.text(0.24, s=name, **look, **at)
    axis.text(1.22, s=about, fontsize=11.5, color=SMALL, **at)


def _node(axis, x, y, width, height, name, shape) -> None:
    """What a step makes, and its shape."""
    _box(axis, x, y, width, height, linewidth=1.4)
    at = {"x": x + width / 2, "ha": "center", "va": "center"}
    axis.text(y=y + 0.64 * height, s=name, fontsize=12, linespacing=1.15, **at)
    axis.text(y=y + 0.22 * height, s=shape, fontsize=11.5, color=SMALL, **at)


def networks(*methods: str, title: str = "") -> Figure:
    """Which networks each method holds, side by side; without names PPO and GRPO.

    A slot's fill says what it holds, so the method's colour underlines its name only.
    """
    methods = methods or ("ppo", "grpo")
    if methods == ("ppo", "grpo"):
        title = title or "GRPO gives up the critic: it trains one network, PPO two"
    figure, axis = draw.canvas(8.2, 5.0)
    axis.text(0.06, 4.8, title, fontsize=13.5, weight="bold", va="center")
    wide, high, step, left = 6.9 / len(methods), 0.62, 0.74, 1.36
    rows = ("policy", "old policy", "reference", "critic", "verifier")
    for row, name in enumerate(rows):
        y = 3.46 - row * step
        axis.text(0.06, y + high / 2, name, fontsize=12.5, weight="bold", va="center")
    for place, name in enumerate(methods):
        x, one = left + place * wide, ALGORITHMS[name]
        look = {"fontsize": 13, "weight": "bold", "ha": "center", "va": "center"}
        axis.text(x + (wide - 0.15) / 2, 4.36, one.title, **look)
        rule, (colour, _) = ([x, x + wide - 0.15], [4.18, 4.18]), style.look(name)
        axis.plot(*rule, color=colour, linewidth=3.5, solid_capstyle="butt")
        for row, (kind, text) in enumerate(_holds(one)):
            _slot(axis, x, 3.46 - row * step, wide - 0.15, high, kind, text)
    _kinds(axis)
    return figure


def _holds(one) -> list[tuple[str, str]]:
    """(kind, what it is for) for policy, old policy, reference, critic, verifier."""
    critic = ("trained", r"$V$: a value per token, ($B$, $T$)")
    mean = "the other answers' mean" if one.name == "reinforce" else "the group's mean"
    group = ("nothing", f"none: {mean}\nis the baseline")
    return [
        ("trained", r"$\pi_\theta$: samples and learns"),
        ("numbers", "only old_logp, ($B$, $T$),\nkept from the rollout"),
        ("frozen", r"$\pi_{ref}$: only with a KL term"),
        critic if one.critic else group,
        ("program", "checks the answer: ($B$,)"),
    ]


KINDS = {
    "trained": {"edge": INK, "face": INK},
    "frozen": {"edge": INK, "face": PAPER, "linewidth": 2.4},
    "numbers": {"edge": GREY, "face": "#EEF1F5", "linewidth": 1.2},
    "program": {"edge": GREY, "face": "#EEF1F5", "linewidth": 1.2},
    "nothing": {"edge": GREY, "face": PAPER, "linestyle": (0, (3, 2))},
}
"""How a slot is drawn, by what it holds."""


def _slot(axis, x, y, width, height, kind, text) -> None:
    """One place for a network, filled by what the method puts there."""
    _box(axis, x, y, width, height, **KINDS[kind])
    ink = PAPER if kind == "trained" else SMALL if kind == "nothing" else INK
    at = {"ha": "center", "va": "center", "fontsize": 11.5, "linespacing": 1.1}
    axis.text(x + width / 2, y + height / 2, text, color=ink, **at)


def _kinds(axis) -> None:
    """What the looks of the slots mean."""
    kinds = {"trained": "network, trained", "frozen": "network, frozen"}
    for place, (kind, name) in enumerate({**kinds, "numbers": "not a network"}.items()):
        x = 1.78 + 2.15 * place
        _box(axis, x, 0.1, 0.3, 0.2, **KINDS[kind])
        axis.text(x + 0.4, 0.2, name, fontsize=11, va="center")


def habit_bars(surveys: dict[str, tuple[dict, dict]], title: str = "") -> Figure:
    """How often each habit is sampled (bar) and how much of that is right (filled).

    `surveys[name]` is (share of each habit, accuracy of each habit). A bar ends in a
    line that is seen however short it is.
    """
    size = (8, 1.45 * len(surveys) + 0.75)
    figure, axes = draw.panel_grid(len(surveys), size, 1, sharex=True)
    for axis, (name, (shares, accuracy)) in zip(axes, surveys.items()):
        for row, (habit, share) in enumerate(shares.items()):
            ink = HABIT_COLOURS.get(habit, GREY)
            axis.barh(row, share, color=ink, alpha=0.3)
            axis.barh(row, share * accuracy[habit], color=ink)
            axis.plot([share, share], [row - 0.4, row + 0.4], color=ink, linewidth=3)
            label = f"{share:.0%} of samples, {accuracy[habit]:.0%} of them right"
            axis.text(share + 0.015, row, label, va="center", fontsize=11)
        draw.row_labels(axis, shares)
        axis.set(xlim=(0, 1.45), xticks=[0, 0.25, 0.5, 0.75, 1])
        axis.spines["bottom"].set_bounds(0, 1)
        axis.set_title(name, loc="left")
        axis.grid(False)
    axes[-1].set_xlabel("share of samples (filled: right)", loc="left")
    if title:
        draw.finding(figure, title)
    return figure


def sft_loss(losses: Sequence[float], skill_steps: int, title: str = "") -> Figure:
    """The two stages of the warm start."""
    figure, axis = plt.subplots(figsize=(8, 3))
    axis.plot(draw.steps(losses), losses, color=FREE[1], linewidth=1)
    draw.rule(axis, x=skill_steps, dash="--", width=1.8)
    axis.text(skill_steps - 8, 2, "the skill", ha="right")
    axis.text(skill_steps + 8, 2, "the habits", ha="left")
    axis.set(xlabel="step", ylabel="loss (nats/token)", ylim=(0, 3))
    if title:
        draw.finding(figure, title)
    return figure


HACKED = "Paid for steps, the policy writes steps: reward rises, accuracy dies"


def hacking(history: History | Sequence[History], title: str = HACKED) -> Figure:
    """What was paid, what was meant, and what was learned, of one run or several."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.8))
    runs = as_runs(history)
    draw.band(left, [run["reward"] for run in runs], BLACK, "reward paid", "--")
    draw.band(left, [run["accuracy"] for run in runs], RIGHT, "accuracy", "o-", ms=4)
    left.set(ylim=(-0.02, 1.02), title="what was paid, what was meant")
    draw.rollout_axis(left, 6)
    habit_shares(right, runs)
    for axis in (left, right):
        axis.legend(loc="best")
    draw.finding(figure, title)
    return figure
