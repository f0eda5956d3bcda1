"""Figures and explorer of chapter 08: wild tokens, one token among T, two means."""

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import COLOURS, GREY, INK, looks_of, shade
from refimpl.algorithms import ALGORITHMS

GRPO, GMPO = COLOURS["grpo"], COLOURS["gmpo"]
RATIOS = torch.linspace(0.02, 2.5, 249, dtype=torch.float64)
WIDE = {"epsilon_low": 0.33, "epsilon_high": 0.49}


def wild_tokens(
    answer: Sequence[str],
    coefficients: Sequence[Sequence[float]],
    heaviest: Mapping[str, Sequence[float]],
    title: str,
) -> Figure:
    """Above: GRPO's and GMPO's coefficient of each token of one answer.

    Below: the largest ratio of each answer over its mean ratio, in two blocks.
    """
    figure, (above, below) = plt.subplots(2, 1, figsize=(5.5, 6))
    grpo, gmpo = coefficients
    above.bar(range(len(answer)), grpo, color=GRPO)
    above.plot(gmpo, "_", color=GMPO, markersize=9, markeredgewidth=3)
    look = {"weight": "bold", "va": "center"}
    above.text(1, 3, f"GRPO: its ratio, {max(grpo):.1f}", color=GRPO, **look)
    said = f"GMPO: {max(gmpo):.1f} where not clipped"
    above.text(1, 2.5, said, color=GMPO, **look)
    above.set_xticks(range(len(answer)), answer, family="monospace")
    above.grid(False, axis="x")
    above.set_title("coefficient of each token of one wrong answer")
    start = 0
    for (label, values), colour in zip(heaviest.items(), (shade(GRPO, 1), GRPO)):
        where = range(start, start + len(values))
        below.bar(where, sorted(values, reverse=True), color=colour)
        below.text(start - 0.4, 3.3, f"{len(values)} {label}", va="bottom")
        start += len(values) + 2
    draw.rule(below, y=1, colour=INK, dash="--")
    below.set(xticks=[], ylim=(0, 4.2), yticks=range(4))
    below.set_title("each answer's largest ratio over the mean (dashed)")
    told = f"{start - 4} answers of one stored rollout, after 16 updates"
    return draw.caption(draw.finding(figure, title), told)


def alone(name: str, length: int, sign: int, **settings) -> Tensor:
    """Coefficient c of a token with each of `RATIOS`; its companions stay at 1."""
    logp = torch.zeros(len(RATIOS), length, dtype=torch.float64)
    logp[:, 0] = RATIOS.log()
    logp.requires_grad_()
    zero, one = torch.zeros_like(logp), torch.ones_like(logp)
    loss = ALGORITHMS[name].policy_loss(logp, zero, sign * one, one, one, **settings)
    return torch.autograd.grad(-loss.loss, logp)[0][:, 0] / sign


def wild_token_explorer() -> explorer.Explorer:
    """Bend GMPO's bounds, and change how many tokens share the mean."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), sharey=True)
    for axis, (sign, name) in zip(axes, draw.SIGNS.items()):
        named = {
            "GRPO": alone("grpo", 8, sign),
            "GRPO, wide clip": alone("grpo", 8, sign, **WIDE),
            "GMPO": alone("gmpo", 8, sign),
        }
        draw.curve_panel(axis, RATIOS, named, looks_of(named), title=name)
        draw.rule(axis, x=1)
        axis.set(xlabel="ratio $r$ of this token", ylim=(-0.06, 2.55), xlim=(0, 2.5))
    axes[0].set_ylabel("its coefficient $c$")
    draw.heading(figure, axes[0], "One token moves, the others stay at ratio 1")
    signs, mine = tuple(draw.SIGNS), [axis.lines[2] for axis in axes]
    edges = [
        axis.axvline(1, color=GMPO, linewidth=1, linestyle=":", alpha=0.9)
        for axis in axes
    ]

    def update(epsilon_low: float, epsilon_high: float, length: int) -> list:
        bounds = {"epsilon_low": epsilon_low, "epsilon_high": epsilon_high}
        at = math.exp(epsilon_high), math.exp(-epsilon_low)
        for axis, line, edge, sign, x in zip(axes, mine, edges, signs, at):
            line.set_ydata(alone("gmpo", length, sign, **bounds).numpy())
            edge.set_xdata([x, x])
            side = "above" if sign > 0 else "below"
            axis.set_title(f"{draw.SIGNS[sign]}: clipped {side} {x:.2f}")
        title = draw.say(
            figure,
            f"One token of {length} moves, and GMPO follows up to r = {at[0]:.2f}",
        )
        return [*mine, *edges, *(axis.title for axis in axes), title]

    lengths = (1, 2, 4, 8, 16, 32, 64)
    return explorer.Explorer(
        figure,
        update,
        {
            "epsilon_low": explorer.log_slider("ε low (on log r)", 0.4, 0.02, 3),
            "epsilon_high": explorer.log_slider("ε high (on log r)", 0.4, 0.02, 0.9),
            "length": explorer.stops("response length |o|", lengths, 8),
        },
        {
            "paper (0.4, 0.4)": {"epsilon_low": 0.4, "epsilon_high": 0.4},
            "as wide as PPO's": {"epsilon_low": 0.22, "epsilon_high": 0.18},
        },
        stakes=stakes.ended(
            {"GMPO": "GMPO", "GRPO with a clip as wide": "GRPO (0.67, 1.49)"}, rate=6e-4
        ),
        prediction=stakes.Prediction(
            "Make the response longer. Does one token's ratio move its coefficient "
            "under GMPO more, or less?",
            ("more", "less"),
            "less",
            "The geometric mean of |o| ratios moves by the |o|-th root of one of them.",
        ),
    )


def sign_trap(grpo: Sequence[float], gmpo: Sequence[float]) -> Figure:
    """Two responses and the mean of their objectives, under both means of ratios."""
    figure, axis = plt.subplots(figsize=(5.5, 4))
    ticks = [
        "good answer,\nratios 2 and ½",
        "bad answer,\nratios 1¼ and 1¼",
        "mean\nof both",
    ]
    draw.grouped_bars(axis, {"GRPO": grpo, "GMPO": gmpo}, (GRPO, GMPO), ticks)
    for bars, name in zip(axis.containers, ("GRPO", "GMPO")):
        said = [f"{name}\n{bar.get_height():g}".replace("-", "−") for bar in bars]
        axis.bar_label(bars, said, padding=3, fontsize=11)
    axis.set(ylabel="objective $J$", ylim=(-1.9, 1.9), yticks=[-1, 0, 1])
    title = "Two answers cancel in GRPO's arithmetic mean, not in GMPO's geometric mean"
    return draw.finding(figure, title)


def at_equal_width(
    panels: Mapping[str, Mapping[str, Sequence[float]]], title: str
) -> Figure:
    """Stored runs by arm; those of each arm begin at the same warm starts, in order."""
    figure, axes = plt.subplots(2, 1, figsize=(5.5, 5.6))
    for axis, (name, rows) in zip(axes, panels.items()):
        for one in zip(*rows.values()):
            axis.plot(one, range(len(one)), color=GREY, linewidth=0.8)
        draw.dots(axis, rows, [colour for colour, _ in looks_of(rows)], what="")
        axis.set_xlim(left=0)
        axis.set_title(name)
    axes[1].set_xlim(right=1)
    told = f"5 runs; {draw.DOTS};\ngrey: one warm start"
    return draw.caption(draw.finding(figure, title), told)
