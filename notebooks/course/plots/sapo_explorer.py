"""SAPO's gate in the reader's hand, with the tokens of a stale rollout on it."""

import math
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch

from course import explorer, stale
from course.plots import primitives as draw
from course.plots.style import BLACK, looks_of
from refimpl.algorithms import from_gate
from refimpl.curves import Curve, curve
from refimpl.lab.arms import one_sided

HALF = 2 * math.acosh(math.sqrt(2))
"""SAPO's gate is ½ where τ |r − 1| = 1.763."""
RATIOS = torch.linspace(0.0043, 3.6, 900, dtype=torch.float64)
GATES = ("SAPO", "one-sided")
LABELS = ("GRPO's clip", "SAPO as published", "SAPO, yours")


def sapo_explorer() -> explorer.Explorer:
    """Both signs: the gate g above, the gradient coefficient c = g r below.

    The dots are the tokens of `stale.load()` after k updates. The percentages are the
    share of the tokens' push, Σ |w g r Â| / Σ |w r Â|, that each gate leaves.
    """
    rollout = stale.load()
    shared = {"sharex": True, "sharey": "row", "height_ratios": (4, 5)}
    figure, axes = plt.subplots(2, 2, figsize=(8, 6.2), **shared)
    good, bad = (column(*axes[:, i], (1, -1)[i], rollout) for i in (0, 1))
    axes[0, 0].set_ylabel("gate $g$")
    axes[1, 0].set_ylabel(r"coefficient $c = g\,r$")

    def update(tau_pos: float, tau_neg: float, gate: str, k: int) -> list:
        return good(gate, tau_pos, k) + bad(gate, tau_neg, k)

    def preset(tau_pos: float, tau_neg: float, gate: str = "SAPO") -> dict:
        return {"tau_pos": tau_pos, "tau_neg": tau_neg, "gate": gate}

    return explorer.Explorer(
        figure,
        update,
        {
            "tau_pos": explorer.log_slider("τ_pos  (Â > 0)", 8.8, 0.1, 100),
            "tau_neg": explorer.log_slider("τ_neg  (Â < 0)", 8.8, 0.1, 100),
            "gate": explorer.choice("gate", GATES, "SAPO"),
            "k": explorer.slider("updates taken, k", 16, 0, 16, 1),
        },
        {
            "paper (1.0, 1.05)": preset(1.0, 1.05),
            "half closed at PPO's 0.2 (8.8, 8.8)": preset(8.8, 8.8),
            "one-sided 8.8": preset(8.8, 8.8, "one-sided"),
        },
    )


def column(upper, lower, sign: int, rollout: stale.Stale) -> Callable[..., list]:
    """Draw the two panels of one sign; returns what moves them."""
    rows = rollout.advantages.sign() == sign
    mask = rollout.mask[rows]
    live = mask.bool()
    ratios = rollout.z[:, rows][:, live].double().exp()  # (K + 1, tokens)
    weight = rollout.advantages[rows, None].abs() * mask / mask.sum(-1, keepdim=True)
    weight = weight[live].double()

    styles = looks_of(LABELS)
    fixed = [curve("grpo", sign, RATIOS), curve("sapo", sign, RATIOS)]
    for axis, name in ((upper, "gate"), (lower, "coefficient")):
        for one, (colour, dash) in zip(fixed, styles):
            axis.plot(RATIOS, getattr(one, name), dash, color=colour)
        draw.rule(axis, x=1)
    colour, dash = styles[-1]
    line = {"color": colour, "linestyle": dash, "linewidth": 2.4}
    dots = {"marker": "o", "linestyle": "", "color": colour, "alpha": 0.6, "ms": 6}
    dots |= {"markeredgecolor": BLACK, "markeredgewidth": 0.6}
    mine = [axis.plot(RATIOS, RATIOS, **line)[0] for axis in (upper, lower)]
    tokens = [axis.plot([], [], **dots)[0] for axis in (upper, lower)]
    (span,) = upper.plot([], [], "|-", color=BLACK, linewidth=1.2, markersize=12)
    width = upper.text(1.82, 1.13, "", ha="center", va="bottom")
    kind = "good tokens, Â > 0" if sign > 0 else "bad tokens, Â < 0"
    upper.set(
        title=f"{live.sum()} {kind}",
        xlim=(0, 3.65),
        ylim=(-0.06, 1.3),
        yticks=(0, 0.5, 1),
    )
    lower.set(
        xlabel=r"ratio $r = \pi_\theta / \pi_{old}$", ylim=(-0.2, 5.4), yticks=range(4)
    )
    lines = [*lower.lines[:2], mine[1]]
    legend = lower.legend(lines, LABELS, loc="upper left", fontsize=9.5, title="k")
    legend.set_alignment("left")

    def left(one: Curve) -> float:
        """The share of the tokens' push that a gate leaves them."""
        return ((weight * one.coefficient).sum() / (weight * one.ratio).sum()).item()

    def move(gate: str, tau: float, k: int) -> list:
        if gate == "SAPO":
            method, settings = "sapo", {"tau_pos": tau, "tau_neg": tau}
        else:
            method, settings = from_gate(one_sided(tau), "one_sided"), {}
        ours = curve(method, sign, RATIOS, **settings)
        at = curve(method, sign, ratios[k], **settings)
        for i, name in enumerate(("gate", "coefficient")):
            mine[i].set_ydata(getattr(ours, name).numpy())
            tokens[i].set_data(ratios[k].numpy(), getattr(at, name).numpy())
        half = HALF / tau
        low, high = 1 - half, 1 + half
        if gate == "one-sided":
            low, high = (1, high) if sign > 0 else (low, 1)
        span.set_data([low, high], [0.5, 0.5])
        width.set_text(f"half-width  1.763/τ = {half:.3f}")
        every = [curve(name, sign, ratios[k]) for name in ("grpo", "sapo")] + [at]
        names = (*LABELS[:2], f"{gate}, yours")
        for text, name, one in zip(legend.get_texts(), names, every):
            text.set_text(f"{left(one) * 100:\u2007>3.0f} %  {name}")
        legend.set_title(f"push kept after {k} updates by")
        return [*mine, *tokens, span, width, legend]

    return move
