"""Figures of chapter 16: bounds on a ratio and on a probability, the fork, a pull."""

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.shared import pairs_by_start
from course.kit.plots.style import BAD, GOOD, GREY, INK, look, looks_of
from course.probability import fork
from refimpl.algorithms import ALGORITHMS
from refimpl.curves import curve

SIGNS = {1: GOOD, -1: BAD}
LOW, HIGH = 3e-4, 1 - 3e-4
TICKS = {0.001: "0.001", 0.01: "0.01", 0.1: "0.1", 0.5: "0.5", 0.9: "0.9", 0.99: "0.99"}


def _logit(side) -> None:
    """Probabilities, with as much room for rare as for likely ones."""
    side.axes.set(**{f"{side.axis_name}scale": "logit"})
    side.set_minor_locator(plt.NullLocator())
    side.set_ticks(list(TICKS), list(TICKS.values()))


def moves(before: Tensor, after: Tensor, signs: Tensor, title: str) -> Figure:
    """Tokens by probability before and after, with a clip's bounds and DPPO's; what
    the clip drops has the colour of its sign."""
    epsilon = delta = 0.2
    figure, axes = draw.panel_grid(2, (8, 4.4), sharey=True)
    line = torch.linspace(-8.2, 8.2, 500).double().sigmoid()
    for axis, (sign, colour) in zip(axes, SIGNS.items()):
        chosen = signs == sign
        x, y = (p[chosen].clamp(LOW, HIGH) for p in (before, after))
        dropped = sign * (y - x * (1 + sign * epsilon)) > 0
        for part, ink in ((~dropped, GREY), (dropped, colour)):
            dots = {"ms": 3.5, "alpha": 0.6, "color": ink, "mew": 0}
            axis.plot(x[part], y[part], "o", **dots, label="_")
        for name, bound in (
            ("GRPO: ratio 1 ± 0.2", line * (1 + sign * epsilon)),
            (f"DPPO-TV: probability ± {delta:g}", line + sign * delta),
        ):
            shown = (bound > LOW) & (bound < HIGH)
            ink, dash = look("grpo" if "GRPO" in name else "dppo_tv")
            draw.line(axis, line[shown], bound[shown], ink, dash, name)
        axis.plot(line, line, color=GREY, linewidth=0.8)
        _logit(axis.xaxis)
        _logit(axis.yaxis)
        side = "above" if sign > 0 else "below"
        axis.set(xlim=(LOW, HIGH), ylim=(LOW, HIGH))
        axis.set(title=f"{draw.SIGNS[sign]}: dropped {side} the line")
        axis.set_xlabel("probability when sampled")
        axis.tick_params("x", labelsize=9)
    axes[0].set_ylabel("probability after the updates")
    return draw.heading(figure, axes[0], title)


METHODS = {
    "GRPO's clip": "grpo",
    "GLM-5": "glm5",
    "DPPO-TV": "dppo_tv",
    "DPPO-KL": "dppo_kl",
    "IPO": "ipo",
}
STOPS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
AFTER = torch.linspace(-8.2, 8.2, 821).double().sigmoid()
"""Probabilities that a token may have after the updates."""


def kept(name: str, sign: int, before: float, **bounds: float) -> Tensor:
    """Where in `AFTER` a token that had this probability has a gradient."""
    return curve(name, sign, AFTER / before, before, **bounds).gate.abs() > 1e-9


def room_explorer() -> explorer.Explorer:
    """To which probabilities a token may go, under five rules, for both signs."""
    figure, axes = draw.panel_grid(2, (8, 3.9), sharey=True)
    bars, rules = {}, []
    for axis, (sign, colour) in zip(axes, SIGNS.items()):
        for row, name in enumerate(METHODS):
            look_of = {"color": colour, "lw": 13, "solid_capstyle": "butt"}
            bars[name, sign] = axis.plot(AFTER, [row] * len(AFTER), **look_of)[0]
        rules.append(axis.axvline(0.5, color=INK, linewidth=1.6))
        _logit(axis.xaxis)
        axis.tick_params("x", labelsize=9)
        axis.set(xlim=(LOW, HIGH), title=draw.SIGNS[sign], xlabel="probability now")
    draw.row_labels(axes[0], METHODS)

    def rows(before: float, **given: dict) -> list:
        """The bars of these methods, each with its own bounds."""
        moved = []
        for (name, sign), bar in bars.items():
            if (method := METHODS[name]) in given:
                open_ = kept(method, sign, before, **given[method])
                row = float([*METHODS].index(name))
                bar.set_ydata(torch.where(open_, row, torch.nan).numpy())
                moved.append(bar)
        return moved

    def by_ratio(before: float, epsilon: float) -> list:
        ratio = {"epsilon_low": min(epsilon, 1.0), "epsilon_high": epsilon}
        return rows(before, grpo=ratio, glm5=ratio)

    def by_difference(before: float, delta: float) -> list:
        both = {"delta_low": delta, "delta_high": delta}
        end = min(1, before + delta)
        told = f"A good token of {before:g} may rise to {end:.2g} under DPPO-TV"
        moved = rows(before, dppo_tv=both, ipo={"delta": delta})
        return [*moved, draw.say(figure, told)]

    def by_kl(before: float, kl: float) -> list:
        return rows(before, dppo_kl={"delta_low": kl, "delta_high": kl})

    def start(before: float) -> list:
        for rule in rules:
            rule.set_xdata([before, before])
        return rules

    def outcome(delta: float) -> str:
        stored = stakes.nearest(delta, (0.1, 0.2, 1.0))
        label = {
            f"DPPO-TV, δ = {stored:g}, weights 3 rollouts late": f"DPPO-TV {stored:g}"
        }
        return stakes.ended(label, updates=1, sampler_delay=3)

    rare, even, sure = 0.001, 0.5, 0.99
    return explorer.Explorer(
        figure,
        [by_ratio, by_difference, by_kl, start],
        {
            "before": explorer.stops("probability when sampled", STOPS, even),
            "epsilon": explorer.slider("ε of the ratio", 0.2, 0.05, 0.9, 0.05),
            "delta": explorer.slider("δ of the probability", 0.2, 0.02, 0.6, 0.02),
            "kl": explorer.slider("δ of the KL", 0.05, 0.01, 0.3, 0.01),
        },
        {f"p = {p:g}": {"before": p} for p in (rare, even, sure)},
        stakes=outcome,
        prediction=stakes.Prediction(
            "A good token had probability 0.001. Which rule lets it rise to 0.1?",
            ("GRPO's clip", "DPPO-TV with δ = 0.2", "neither"),
            "DPPO-TV with δ = 0.2",
            "0.1 is a hundred times 0.001, but only 0.099 more.",
        ),
        name="16_room",
    )


def places(runs: Mapping[str, fork.Masked], title: str) -> Figure:
    """How many tokens each run dropped at each place of the answer, by sign."""
    figure, axes = draw.panel_grid(len(runs), (8, 3.3), sharey=True)
    for axis, (name, run) in zip(axes, runs.items()):
        at = torch.arange(1, fork.PLACES + 1)
        axis.set_xlim(0, 25)
        axis.bar(at, run.dropped[0], color=GOOD, label=draw.SIGNS[1])
        below = {"color": BAD, "hatch": "//", "edgecolor": "white", "linewidth": 0}
        axis.bar(at, -run.dropped[1], label=draw.SIGNS[-1], **below)
        draw.rule(axis, y=0, colour=INK, dash="-")
        axis.set(title=name, xlabel="place in the answer", xticks=(1, 5, 10, 15, 20))
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(low, high)
    axes[0].yaxis.set_major_formatter(lambda y, _: f"{abs(y):g}")
    axes[0].set_ylabel("tokens dropped")
    draw.heading(figure, axes[0], title)
    return draw.caption(figure, "1 run per panel, 16 rollouts of 256 answers")


def episode(
    reward: Mapping[str, Sequence[Sequence[float]]],
    pairs: Mapping[int, Sequence[float]],
    title: str,
) -> Figure:
    """Claim 17: reward by rollout for each threshold, and each pair's difference."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.7), width_ratios=(1.5, 1))
    left, right = axes
    for (label, runs), (colour, dash) in zip(reward.items(), looks_of(reward)):
        draw.band(left, runs, colour, label, dash)
    draw.rule(left, y=0.8, colour=INK, dash="--")
    draw.rollout_axis(left)
    left.set(ylim=(0, 1.02), title="reward")
    pairs_by_start(right, pairs)
    right.set_title("rollouts to 0.8")
    every = [y for values in pairs.values() for y in values]
    low, high = min(0, *every) - 0.03, max(0, *every) + 0.03
    tenths = (x / 10 for x in range(5, 21))
    marks = [x for x in tenths if low < math.log2(x) < high]
    right.set_yticks([math.log2(x) for x in marks], [f"×{x:g}" for x in marks])
    draw.heading(figure, left, title)
    told = "right: pairs of runs, 0.1 to 0.2; line, band: mean and 95 % interval"
    left_told = figure.get_supxlabel().partition(";")[0]
    return draw.caption(figure, f"{left_told}; line: median, band: range; {told}")


def pulls(tau: float, title: str) -> Figure:
    """DRO's and Kimi's coefficient of ∇log π over z, for Â = 1, 0 and −1."""
    figure, axes = draw.panel_grid(2, (8, 3.6), sharey=True)
    z = torch.linspace(-3, 3, 241).double()
    inks = {1: (GOOD, "-"), 0: (GREY, ":"), -1: (BAD, "--")}
    for axis, name in zip(axes, ("dro", "kimi")):
        for advantage, (ink, dash) in inks.items():
            y = coefficient(name, z, advantage, tau=tau)
            y = y.masked_fill(torch.cat([y.diff().abs(), y[:1] * 0]) > 1, torch.nan)
            label = rf"$\hat{{A}} = {advantage}$"
            draw.line(axis, z, y, ink, dash, label)
        draw.rule(axis, y=0, colour=INK, dash="-")
        draw.rule(axis, x=0)
        names = {"dro": "DRO", "kimi": "Kimi K2.5"}
        axis.set(title=f"{names[name]}, τ = {tau:g}", xlabel=r"$z = \log r$")
        axis.set(ylim=(-3.4, 3.4), xticks=range(-3, 4))
    axes[0].set_ylabel(r"coefficient of $\nabla\log\pi$")
    return draw.heading(figure, axes[0], title)


def coefficient(name: str, z: Tensor, advantage: float, **given: float) -> Tensor:
    """Return the coefficient of ∇log π for one-token answers, also where Â is 0."""
    old = torch.full_like(z, -4.0)[:, None]
    logp, one = (old + z[:, None]).requires_grad_(), torch.ones_like(old)
    advantages = torch.full_like(z, advantage)
    loss = ALGORITHMS[name].policy_loss(logp, old, advantages, one, one, **given).loss
    return -torch.autograd.grad(loss, logp)[0][:, 0]
