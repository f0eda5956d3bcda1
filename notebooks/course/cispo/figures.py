"""Figures of chapter 07: the fork token, the loss that means nothing, stale runs."""

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, PercentFormatter

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import GREY, PAPER, looks_of
from refimpl.curves import curve

RATIOS = (0.5, 1, 1.28, 2, 5, 20, 100)
MINIBATCHES = 4


def _updates_axis(axis, count: int) -> None:
    """Ticks at the first update and at the end of every pass over the rollout."""
    ticks = [1, *range(MINIBATCHES, count + 1, MINIBATCHES)]
    axis.set_xlabel("update")
    axis.xaxis.set_major_locator(FixedLocator(ticks))


def fork_shares(
    panels: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], title: str
) -> Figure:
    """One panel per quantity, one colour per method; runs thin, their median thick.

    The first panel is of ratios, on a log scale; the others are shares.
    """
    figure, axes = draw.panel_grid(len(panels), (8, 3.7))
    for axis, (name, named) in zip(axes, panels.items()):
        for (label, runs), (colour, dash) in zip(named.items(), looks_of(named)):
            draw.strands(axis, runs, colour, label, dash, what="rollout")
            _updates_axis(axis, len(runs[0]))
        axis.set_title(name, fontsize=11.5)
    axes[0].set_yscale("log")
    low, _ = axes[0].get_ylim()
    ticks = RATIOS if low > 0.3 else (0.03, 0.1, 0.3, 1, 3, 10, 30)
    draw.plain_ticks(axes[0].yaxis, ticks)
    for axis in axes[1:]:
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
        axis.set_ylim(bottom=0)
    return draw.heading(figure, axes[0], title)


def loss_value(chances, values: Mapping[str, Sequence[float]], coefficients) -> Figure:
    """A good token at 1 % as it rises: its loss (left), its coefficient (right)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.5))
    for axis, lines in ((left, values), (right, coefficients)):
        draw.curve_panel(axis, chances, lines, looks_of(lines), xscale="log")
        draw.plain_ticks(axis.xaxis, (0.01, 0.05, 0.2, 1))
        axis.set_xlabel(r"probability $\pi_\theta$ of the token now")
        draw.rule(axis, x=0.05)
    left.set(title="its loss")
    right.set(title="its gradient coefficient c", ylim=(-0.3, 6))
    right.annotate("cap at r = 5", (0.053, 5.4), color="#555555")
    title = "One good token rises as asked; CISPO's loss rises with it, up to the cap"
    return draw.heading(figure, left, title)


def cispo_explorer() -> explorer.Explorer:
    """CISPO's coefficient under a cap and a mask, over DAPO's, for both signs."""
    grid = torch.logspace(math.log10(0.06), math.log10(11), 700).double()
    fixed = {"unclipped": ("reinforce", {"correct": True}), "DAPO": ("dapo", {})}
    named = {**fixed, "CISPO": ("cispo", {})}
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.9), sharey=True)
    looks = dict(zip(named, looks_of(named)))
    mine, edges = [], []
    for axis, (sign, head) in zip(axes, draw.SIGNS.items()):
        for label, (name, given) in named.items():
            one = curve(name, sign, grid, **given)
            width = 5.0 if label == "unclipped" else 2.2  # it shines through
            look = {"label": label, "lw": width}
            draw.line(axis, one.ratio, one.coefficient, *looks[label], **look)
        mine.append(axis.lines[-1])
        edge = {"color": GREY, "linestyle": "--", "linewidth": 1.5}
        edges.append(axis.axvline(1, label="edge of the mask", **edge))
        axis.set(title=head, xlabel="ratio r", xscale="log", yscale="log")
        axis.set_ylim(0.04, 12)
        for side in (axis.xaxis, axis.yaxis):
            draw.plain_ticks(side, (0.1, 0.2, 0.5, 1, 2, 5, 10))
    axes[0].set_ylabel("gradient coefficient c")
    axes[0].legend(loc="upper left")

    def curves(max_ratio: float, mask: str, epsilon: float) -> list:
        settings = {"max_ratio": max_ratio}
        if mask in ("both halves", "lower half"):
            settings["mask_epsilon_low"] = min(epsilon, 0.99)
        if mask in ("both halves", "upper half"):
            settings["mask_epsilon_high"] = epsilon
        for line, sign in zip(mine, (1, -1)):
            c = curve("cispo", sign, grid, **settings).coefficient
            line.set_ydata(c.clamp(min=1e-3).numpy())  # 0 is below a log scale
        return mine

    def bounds(mask: str, epsilon: float) -> list:
        sides = zip(edges, ("upper half", "lower half"))
        for (edge, half), x in zip(sides, (1 + epsilon, 1 - min(epsilon, 0.99))):
            edge.set(xdata=[x, x], visible=mask in ("both halves", half))
        return edges

    def said(max_ratio: float, mask: str) -> list:
        if mask != "off":
            halves = {"both halves": "both halves of its mask"}
            what = f" and {halves.get(mask, f'the {mask} of its mask')}"
        elif max_ratio == 5:
            what = ", ScaleRL's: no token is dropped"
        else:
            what = ": no token is dropped"
        name = "PPO" if mask == "both halves" and max_ratio == 10 else "CISPO"
        return [draw.say(figure, f"{name}, cap {max_ratio:g}{what}")]

    masks = ["off", "upper half", "lower half", "both halves"]
    return explorer.Explorer(
        figure,
        [curves, bounds, said],
        {
            "max_ratio": explorer.log_slider("cap (max_ratio)", 5.0, 1.0, 10.0),
            "mask": explorer.choice("mask of the unified form", masks, "off"),
            "epsilon": explorer.log_slider("ε of the mask", 0.28, 0.05, 5.0),
        },
        {
            "CISPO, cap 5": {"max_ratio": 5.0, "mask": "off", "epsilon": 0.28},
            "PPO": {"max_ratio": 10.0, "mask": "both halves", "epsilon": 0.2},
            "low mask": {"max_ratio": 5.0, "mask": "lower half", "epsilon": 0.2},
        },
        stakes=stakes.ended({"CISPO, cap 5": "CISPO 5", "DAPO": "DAPO"}),
        prediction=stakes.Prediction(
            "A token of a good answer has risen to r = 8. Does CISPO with its cap at 5 "
            "still push it?",
            ("yes", "no"),
            "yes",
            "The cap bounds its weight at 5; the gradient of log π stays.",
        ),
        name="07_cap",
    )


def walk_explorer(paths: Mapping[str, Sequence[Sequence[float]]]) -> explorer.Explorer:
    """The good forks on both methods' curves (Â > 0), update by update.

    `paths[label][i][k]` is the ratio of fork i before update k + 1.
    """
    grid = torch.logspace(math.log10(0.3), 2, 800).double()
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True)
    parts = []
    looks = dict(zip(paths, looks_of(paths)))
    for axis, (label, forks) in zip(axes, paths.items()):
        c = curve(label.lower(), 1.0, grid).coefficient
        draw.line(axis, grid, c, *looks[label])
        axis.set(xscale="log", ylim=(-0.4, 6.2), xlabel="ratio r of the fork token")
        axis.set_title(f"{label}: {len(forks)} of {len(forks)} have a gradient")
        draw.plain_ticks(axis.xaxis, (0.5, 1, 2, 5, 20, 100))
        look = {"color": looks[label][0], "mec": PAPER, "markersize": 10}
        (dots,) = axis.plot([], [], "o", **look, zorder=5)
        parts.append((axis, label, dots, forks))
    axes[0].set_ylabel("gradient coefficient c")

    def move(k: int) -> list:
        gone = []
        for axis, label, dots, forks in parts:
            r = torch.tensor([path[k - 1] for path in forks]).double()
            r = r.clamp(0.31, 99)
            c = curve(label.lower(), 1.0, r).coefficient
            dots.set_data(r.numpy(), c.numpy())
            alive = int((c > 0).sum())
            gone.append(f"{label} {len(forks) - alive}")
            axis.set_title(f"{label}: {alive} of {len(forks)} have a gradient")
        moved = [x for axis, _, dots, _ in parts for x in (dots, axis.title)]
        said = f"Before update {k}: good forks dropped: {', '.join(gone)}"
        return [*moved, draw.say(figure, said)]

    count = len(next(iter(paths.values()))[0])
    control = explorer.slider("before update k", 5, 1, count, 1)
    both = {"CISPO": "CISPO 5", "DAPO": "DAPO"}
    return explorer.Explorer(
        figure,
        [move],
        {"k": control},
        stakes=stakes.ended(both, rate=2e-4, world="rare"),
        prediction=stakes.Prediction(
            "How many of the eight good forks will CISPO have dropped at the end?",
            ("none", "half of them", "all of them"),
            "none",
            "A cap bounds a fork's weight, and a clip sets it to 0.",
        ),
        name="07_forks",
    )


def training(
    panels: Mapping[str, tuple[Mapping[str, Sequence[float]], float]],
) -> Figure:
    """Where the runs end: a panel per setting, a row per method, a dot per run.

    `panels[title]` holds the methods' values, and the value before training.
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(8, 2.9), sharey=True)
    for axis, (title, (rows, before)) in zip(axes, panels.items()):
        draw.dots(axis, rows, [colour for colour, _ in looks_of(rows)], "o^s")
        draw.rule(axis, x=before, dash="--", width=1.5)
        axis.set_title(title)
        axis.set_xlim(left=0)
        axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes[-1].annotate("before", (before, 1), (4, -4), textcoords="offset points")
    figure.get_layout_engine().set(wspace=0.06)
    title = "CISPO finds the rare habit, and loses the skill at the hard setting"
    return draw.finding(figure, title)
