"""The map of methods, chapter 11: what each of them changes in its parent.

It is drawn on a canvas whose unit is the inch.
"""

import statistics

import torch
from matplotlib.figure import Figure

from course.kit.plots import primitives as draw
from course.kit.plots.style import BAD, COLOURS, FREE, GOOD, GREY, INK, PAPER
from refimpl.algorithms import ALGORITHMS
from refimpl.curves import curve

SMALL = "#555555"  # text beside what matters more

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


def family_map() -> Figure:
    """Every algorithm of the course below its parent, with what it changes drawn."""
    figure, axis = draw.canvas(8.2, 7.7)
    wide, high, step, gutter = 2.54, 1.36, 1.54, 0.25
    for name, (column, row, chapter) in PLACES.items():
        x, y = 0.04 + column * (wide + gutter), 0.06 + row * step
        draw.box(axis, x, y, wide, high, COLOURS[name])
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
        draw.arrow(axis, (0.86, start), (0.86, end), colour=ink, width=2.4)


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
        draw.arrow(axis, (x, below), (x, below - step + high))
        return
    x, y = left + wide, below + high / 2
    bend, to = x + 0.09, 0.06 + cy * step + high / 2
    draw.arrow(axis, (x, y), (bend, y), (bend, to), (x + gutter, to))


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
