"""Figures of chapter 00: maps of methods, networks and one training step; the world.

The pictures that are not charts are drawn on a canvas whose unit is the inch.
"""

import itertools
import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from course.kit.plots import primitives as draw
from course.kit.plots.style import (
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


def family_map() -> Figure:
    """Every algorithm of the course below its parent, with what it changes drawn."""
    figure, axis = draw.canvas(8.2, 7.7)
    wide, high, step, gutter = 2.54, 1.36, 1.54, 0.25
    for name, (column, row, chapter) in PLACES.items():
        x, y = 0.04 + column * (wide + gutter), 0.06 + row * step
        _box(axis, x, y, wide, high, COLOURS[name])
        top = {"y": y + high - 0.2, "va": "center"}
        axis.text(x + 0.1, s=ALGORITHMS[name].title, weight="bold", fontsize=14, **top)
        at = {"ha": "right", "fontsize": 11.5, "color": SMALL}
        axis.text(x + wide - 0.09, s=f"ch. {chapter:02d}", **at, **top)
        says, picture = CHANGES[name]
        look = {"va": "center", "fontsize": 11.5, "linespacing": 1.12}
        axis.text(x + 1.27, y + 0.49, says, **look)
        picture(_inset(axis, x + 0.1, y + 0.1, 1.08, 0.84))
        parent = ALGORITHMS[name].parent
        if parent is not None:
            _branch(axis, PLACES[parent], (column, row), wide, high, step, gutter)
    x, top = 0.04 + 2 * (wide + gutter), 0.06 + 4 * step + high
    title = "Eleven methods: what\neach of them changes\nin its parent"
    figure.suptitle(
        title, x=x / 8.2, y=top / 7.7, ha="left", va="top", linespacing=1.25
    )
    _key(axis, 0.1, 0.36)
    return figure


def _inset(axis, x, y, width, height):
    """A small bare panel of the map, in which a picture is drawn from 0 to 1."""
    inset = axis.inset_axes([x, y, width, height], transform=axis.transData, zorder=4)
    inset.set(xlim=(0, 1), ylim=(0, 1))
    inset.axis("off")
    return inset


TOKEN = 0.105
"""The width of a token in a small picture."""


def _tokens(axis, heights, y=0.0, x=0.0, ghosts=(), **look) -> None:
    """Tokens as bars side by side; `ghosts` are the parent's heights."""
    look = {"color": INK} | look
    places = [x + i * 1.3 * TOKEN for i in range(len(heights))]
    axis.bar(places, heights, TOKEN, y, align="edge", **look)
    for place, ghost in zip(places, ghosts):
        hollow = {"facecolor": "none", "edgecolor": SMALL, "linestyle": (0, (2, 1.2))}
        axis.bar(place, ghost, TOKEN, y, align="edge", lw=1.3, **hollow)


def _pushed(axis) -> None:
    """A rewarded response goes up, an unrewarded one down."""
    for y, ink, start, end in ((0.6, GOOD, 0.55, 0.95), (0.1, BAD, 0.4, 0.0)):
        _tokens(axis, [0.22] * 5, y, color=ink)
        _arrow(axis, (0.86, start), (0.86, end), colour=ink, width=2.4)


def _gate(name: str, ghost: str = ""):
    """Draw the coefficient c = g r for Â > 0 on log axes; the ghost is the parent's."""

    def picture(axis) -> None:
        ratios = torch.logspace(-2, 3, 400, base=2)
        for who, ink, dash in ((ghost, GREY, (0, (2, 1.2))), (name, GOOD, "-")):
            if who:
                one = curve(who, 1, ratios)
                y = one.coefficient.clamp(min=0.2)
                draw.line(axis, one.ratio, y, ink, dash, lw=2.6 if who == name else 1.6)
        axis.axvline(1, color=GREY, lw=1, linestyle=":")
        axis.set(xscale="log", yscale="log", xlim=(0.25, 8), ylim=(0.18, 8))

    return picture


def _group_mean(axis) -> None:
    """Rewards of one group, and each one's distance from their mean."""
    rewards = (0.92, 0.08, 0.08, 0.92, 0.08)
    mean = sum(rewards) / len(rewards)
    for i, reward in enumerate(rewards):
        x, ink = 0.1 + 0.2 * i, GOOD if reward > mean else BAD
        axis.plot([x, x], [mean, reward], color=ink, lw=2.4)
        axis.plot([x], [reward], "o", color=ink, ms=7, clip_on=False)
    axis.axhline(mean, color=INK, lw=1.6, linestyle="--")


def _scale(axis) -> None:
    """Weights of a short and of a long answer's tokens; ghosts: with 1/|o|."""
    _tokens(axis, [0.24] * 3, 0.52, ghosts=[0.46] * 3, color=FREE[1])
    _tokens(axis, [0.24] * 7, 0.06, ghosts=[0.12] * 7, color=FREE[1])


def _bracket(axis, y=0.66) -> None:
    """One bracket over all tokens of a response."""
    axis.plot([0.0, 0.0, 0.93, 0.93], [y - 0.12, y, y, y - 0.12], color=INK, lw=2)
    axis.text(0.465, y + 0.17, "$s$", ha="center", va="center", fontsize=14)


def _whole(axis) -> None:
    _tokens(axis, [0.3] * 7, 0.12)
    _bracket(axis)


def _whole_and_tokens(axis) -> None:
    """The same bracket, and below it an advantage for each token."""
    _tokens(axis, [0.22] * 7, 0.3)
    _bracket(axis)
    for i, size in enumerate((0.13, 0.22, 0.08, 0.22, 0.16, 0.06, 0.22)):
        x = i * 1.3 * TOKEN + TOKEN / 2
        axis.plot([x, x], [0.23, 0.23 - size], color=GOOD if i % 3 else BAD, lw=3.2)


def _taller(axis) -> None:
    """The bounds on the ratio: the upper one is raised, to scale."""
    low, old, high = 0.8, 1.2, 1.28
    place = {one: (one - 0.7) / 0.68 for one in (low, 1.0, old, high)}
    axis.fill_between(
        [0.0, 0.52], place[low], place[high], color=GOOD, alpha=0.25, lw=0
    )
    axis.plot([0, 0.52], [place[high]] * 2, color=GOOD, lw=3)
    axis.plot([0, 0.52], [place[low]] * 2, color=INK, lw=3)
    axis.plot([0, 0.52], [place[old]] * 2, color=GREY, lw=1.6, ls=(0, (2, 1.2)))
    axis.plot([0, 0.52], [place[1.0]] * 2, color=GREY, lw=1, ls=":")
    for bound, ink in ((high, GOOD), (low, INK)):
        look = {"fontsize": 11.5, "va": "center", "color": ink}
        axis.text(0.57, place[bound], f"{bound:g}", **look)


RATIOS = (0.5, 1.2, 0.3, 2.8, 0.7)
"""Ratios of one response's tokens, one of which has run away."""


def _geometric(axis) -> None:
    """Token ratios, and their geometric mean below the arithmetic one (ghost)."""
    _tokens(axis, [0.34 * r for r in RATIOS], color=FREE[1])
    flat, mean = statistics.fmean(RATIOS), statistics.geometric_mean(RATIOS)
    axis.plot([0, 0.78], [0.34 * flat] * 2, color=GREY, lw=1.6, ls=(0, (2, 1.2)))
    axis.plot([0, 0.78], [0.34 * mean] * 2, color=INK, lw=2.6)


def _routers(axis) -> None:
    """Tokens whose expert has changed (lower row: before, now) count less."""
    before, now = "aabab", "aabba"
    kept = [0.5 if one == other else 0.2 for one, other in zip(before, now)]
    _tokens(axis, kept, 0.44, ghosts=[0.5] * 5)
    for y, row in ((0.27, before), (0.08, now)):
        for i, expert in enumerate(row):
            x, ink = i * 1.3 * TOKEN + TOKEN / 2, FREE[0] if expert == "a" else FREE[3]
            axis.plot([x], [y], "s" if expert == "a" else "o", color=ink, ms=6)


CHANGES = {
    "reinforce": ("what is paid\nbecomes\nlikelier", _pushed),
    "ppo": ("a clip on the\ntoken ratio;\na critic", _gate("ppo")),
    "grpo": ("the group's\nmean replaces\nthe critic", _group_mean),
    "dr_grpo": ("the same\nscale for every\nanswer", _scale),
    "gspo": ("one ratio for\nthe whole\nresponse", _whole),
    "dapo": ("a higher upper\nbound, and\nthree more", _taller),
    "gmpo": ("a geometric\nmean of the\ntoken ratios", _geometric),
    "sapo": ("a soft gate:\nit fades, with\nno edge", _gate("sapo", "ppo")),
    "gspo_token": ("… and each\ntoken its own\nadvantage", _whole_and_tokens),
    "cispo": ("a cap: no\ntoken is\ndropped", _gate("cispo", "dapo")),
    "rspo": ("less weight\nwhere routers\ndrifted", _routers),
}
"""What a method's box on the map says and draws."""


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
    """How to read the curves of PPO, CISPO and SAPO."""
    key = _inset(axis, x + 0.3, y + 0.9, 1.75, 1.35)
    _gate("ppo")(key)
    key.axis("on")
    key.set_facecolor(PAPER)
    key.grid(False)
    for side in (key.xaxis, key.yaxis):
        draw.plain_ticks(side, [1])
    key.set_xlabel("ratio $r$ (log)", fontsize=12, labelpad=2)
    key.set_ylabel("weight (log)", fontsize=12, labelpad=3)
    key.tick_params(length=2, pad=1, labelsize=11.5)
    says = "blue curve: how much a\ntoken with $\\hat{A} > 0$ weighs"
    says += "\ngrey dashes: in the parent"
    axis.text(x, y, says, fontsize=12, va="center", linespacing=1.2)


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


def habit_bars(survey, title: str, footer: str) -> Figure:
    """How often each habit is sampled (bar) and how much of that is right (filled).

    `survey` is a `course.kit.habits.Survey`. A bar ends in a line that is seen however
    short it is.
    """
    figure, axis = plt.subplots(figsize=(8, 2.5))
    longest = max(survey.shares.values())
    for row, (habit, share) in enumerate(survey.shares.items()):
        ink, right = HABIT_COLOURS.get(habit, GREY), survey.accuracies[habit]
        axis.barh(row, share, color=ink, alpha=0.3)
        axis.barh(row, share * right, color=ink)
        axis.plot([share, share], [row - 0.4, row + 0.4], color=ink, linewidth=3)
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
