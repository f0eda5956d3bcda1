"""The explorer of chapter 08: one token of an answer moves, the others do not."""

import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import COLOURS, looks_of
from refimpl.algorithms import ALGORITHMS

GMPO = COLOURS["gmpo"]
RATIOS = torch.linspace(0.02, 2.5, 249, dtype=torch.float64)
WIDE = {"epsilon_low": 0.33, "epsilon_high": 0.49}


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
    draw.heading(figure, axes[0])
    signs, mine = tuple(draw.SIGNS), [axis.lines[2] for axis in axes]
    edges = [
        axis.axvline(1, color=GMPO, linewidth=1, linestyle=":", alpha=0.9)
        for axis in axes
    ]

    def panel(sign: int, length: int, at: float, side: str, **bounds) -> list:
        i = signs.index(sign)
        mine[i].set_ydata(alone("gmpo", length, sign, **bounds).numpy())
        edges[i].set_xdata([at, at])
        axes[i].set_title(f"{draw.SIGNS[sign]}: clipped {side} {at:.2f}")
        return [mine[i], edges[i], axes[i].title]

    def good(epsilon_high: float, length: int) -> list:
        at = math.exp(epsilon_high)
        told = f"One token of {length} moves, and GMPO follows up to r = {at:.2f}"
        moved = panel(1, length, at, "above", epsilon_high=epsilon_high)
        return [*moved, draw.say(figure, told)]

    def bad(epsilon_low: float, length: int) -> list:
        at = math.exp(-epsilon_low)
        return panel(-1, length, at, "below", epsilon_low=epsilon_low)

    lengths = (1, 2, 4, 8, 16, 32, 64)
    return explorer.Explorer(
        figure,
        [good, bad],
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
        name="08_wild_token",
    )
