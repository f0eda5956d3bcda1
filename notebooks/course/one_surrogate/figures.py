"""Figures of chapter 11: all methods as one, gates on real tokens, the theorem."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from scipy import special

from course.kit import explorer, stakes, stale
from course.kit.plots import primitives as draw
from course.kit.plots import style, tokens
from course.kit.plots.style import BAD, FREE, GOOD, GREY, INK
from course.one_surrogate.inspector import step_explorer  # noqa: F401
from course.sapo.figures import left
from experiments.arms import one_sided
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.curves import Curve, curve
from refimpl.gate import from_gate

MEAN = FREE[1]
"""Two gates and their mean."""


def one_table(
    families: Mapping[str, Mapping[int, Curve]],
    normalisers: Mapping[str, Sequence[float]],
    title: str = "",
) -> Figure:
    """Gradient coefficient of every method for both signs, and the normalisers.

    `normalisers[label]` holds a token's weight × B for lengths 1 … L. Axes end at 3, or
    at 6 where the coefficient of good tokens goes beyond 3.
    """
    figure, (*axes, last) = draw.panel_grid(8, (8, 5.6), 4)
    for axis, (label, by_sign) in zip(axes, families.items()):
        ratio = by_sign[1].ratio
        axis.plot(ratio, ratio, ":", color=GREY, linewidth=1.2, label="$r$, unclipped")
        for sign, look in ((1, (GOOD, "-")), (-1, (BAD, "--"))):
            name = draw.SIGNS[sign]
            draw.line(axis, ratio, by_sign[sign].coefficient, *look, name)
        draw.rule(axis, x=1)
        axis.set_title(label, fontsize=11)
        top, step = (6, 2) if by_sign[1].coefficient.max() > 3 else (3, 1)
        ticks = range(0, top + 1, step)
        axis.set(xlim=(0, top), ylim=(-0.03 * top, top), xticks=ticks, yticks=ticks)
    for axis in axes[::4]:
        axis.set_ylabel("$c = g\\,r$")
    for axis in axes[4:]:
        axis.set_xlabel("ratio $r$")
    draw.curve_panel(last, None, normalisers, zip(FREE, style.DASHES), yscale="log")
    last.set_title("weight × B", fontsize=11)
    last.set_xlabel(r"length $|o|$")
    last.legend(loc="upper right", handlelength=1.6, fontsize=10)
    return draw.heading(figure, axes[0], title)


def two_tokens(z, gate, pairs, tau: float, title: str) -> Figure:
    """The gate, and pairs (z₁, z₂): their mean gate against the gate of their mean."""
    figure, axes = draw.panel_grid(len(pairs), (8, 4.2), sharey=True)
    for axis, (name, points, heights, middle) in zip(axes, pairs):
        axis.plot(z, gate, color=style.SAPO_NARROW[0])
        mean = sum(points) / 2
        axis.plot(points, heights, "o-", color=MEAN, label="two tokens")
        axis.plot([mean], [sum(heights) / 2], "s", color=MEAN, label="mean of gates")
        hollow = {"mfc": "none", "mew": 2, "ms": 9, "color": INK}
        axis.plot([mean], [middle], "D", label="gate of the mean", **hollow)
        gap = [sum(heights) / 2, middle]
        axis.plot([mean, mean], gap, color=INK, linewidth=2.5, label="the gap")
        axis.set(title=name, xlabel="log-ratio $z$", xticks=(-0.4, 0, 0.4))
    axes[0].set_ylabel(f"gate $g(z)$, τ = {tau:g}")
    return draw.heading(figure, axes[0], title, columns=4)


def left_of_it(shares: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """The mean gate of the tokens that moved on, and of those that come back."""
    return left(shares, title, "mean gate of tokens with |log r| > 0.2")


def detectable(sd: float, n: int, paired: bool, alpha: float = 0.05) -> float:
    """The effect that n runs per arm show with power 0.8 in a two-sided t test.

    (t_{1 − α/2} + t_{0.8}) · sd / √n            paired: sd of the differences
    (t_{1 − α/2} + t_{0.8}) · sd · √(2/n)        unpaired: sd of an arm
    """
    df = n - 1 if paired else 2 * n - 2
    scale = math.sqrt((1 if paired else 2) / n)
    t = special.stdtrit(df, 1 - alpha / 2) + special.stdtrit(df, 0.8)
    return float(t) * sd * scale


METHODS = ("grpo", "dapo", "gspo", "cispo", "gmpo", "sapo", "one-sided", "yours")


def surrogate_explorer(yours: Algorithm) -> explorer.Explorer:
    """Two methods, a row for each sign: gates left, the stale tokens right.

    The histograms hold the tokens of `stale.load()` after 16 updates; the percentages
    are the shares of the tokens' push, Σ |w g r Â| / Σ |w r Â|, with w = 1/|o|.
    """
    rollout = stale.load()
    figure, axes = plt.subplots(2, 2, figsize=(draw.NARROW, 6.2))
    known = dict(zip(METHODS, METHODS)) | {"yours": yours}
    rows = [Row(*one, rollout, known) for one in zip(axes, (1, -1))]

    def good(method: str, epsilon: float, tau_pos: float) -> list:
        return rows[0].draw(0, method, epsilon, tau_pos)

    def bad(method: str, epsilon: float, tau_neg: float) -> list:
        return rows[1].draw(0, method, epsilon, tau_neg)

    def good_beside(beside: str, epsilon: float, tau_pos: float) -> list:
        return rows[0].draw(1, beside, epsilon, tau_pos)

    def bad_beside(beside: str, epsilon: float, tau_neg: float) -> list:
        return rows[1].draw(1, beside, epsilon, tau_neg)

    def said(method: str, epsilon: float, tau_pos: float, tau_neg: float) -> list:
        taus = zip(rows, (tau_pos, tau_neg))
        kept = sum(row.gate(method, epsilon, tau).kept for row, tau in taus)
        share = 100 * kept / sum(row.push.sum() for row in rows)
        told = f"{_named(method)} keeps {share:.0f} % of the push of these tokens"
        return [draw.say(figure, told)]

    def outcome(method: str, beside: str, tau_pos: float) -> str:
        stored = {
            label: arm
            for name in dict.fromkeys((method, beside))
            for label, arm in _stored(name, tau_pos).items()
        }
        if not stored:
            return "No runs with your own gate are stored."
        return stakes.ended(stored)

    return explorer.Explorer(
        figure,
        [good, bad, good_beside, bad_beside, said],
        {
            "method": explorer.choice("method", METHODS, "sapo"),
            "beside": explorer.choice("beside (dashed)", METHODS, "grpo"),
            "epsilon": explorer.log_slider("ε", 0.2, 0.02, 1),
            "tau_pos": explorer.log_slider("τ_pos  (Â > 0)", 8.8, 0.1, 100),
            "tau_neg": explorer.log_slider("τ_neg  (Â < 0)", 8.8, 0.1, 100),
        },
        {
            "SAPO as published": {"method": "sapo", "tau_pos": 1.0, "tau_neg": 1.05},
            "GSPO beside GMPO": {"method": "gspo", "beside": "gmpo", "epsilon": 0.2},
            "yours beside SAPO 8.8": {
                "method": "yours",
                "beside": "sapo",
                "tau_pos": 8.8,
                "tau_neg": 8.8,
            },
        },
        stakes=outcome,
        prediction=stakes.Prediction(
            "Which leaves less of the push of tokens that moved on?",
            ("GRPO", "SAPO as published"),
            "GRPO",
            "Its clip is closed beyond 1 ± ε, where SAPO's published gate is still "
            "wide open.",
        ),
        name="11_surrogate",
    )


ARMS = {
    "grpo": {"GRPO": "GRPO"},
    "dapo": {"DAPO": "DAPO"},
    "gspo": {"GSPO, ε = 0.03": "GSPO 0.03"},
    "cispo": {"CISPO, cap 5": "CISPO 5"},
    "gmpo": {"GMPO": "GMPO"},
    "yours": {},
}


def _stored(name: str, tau: float) -> dict[str, str]:
    """The stored arm that is nearest to a method with this temperature."""
    if name == "sapo":
        near = stakes.nearest(tau, (1.0, 4.4, 8.8, 17.6))
        return {f"SAPO, τ = {near:g}": f"SAPO {near}"}
    if name == "one-sided":
        near = stakes.nearest(tau, (4.4, 8.8, 17.6))
        return {f"one-sided, τ = {near:g}": f"one-sided {near}"}
    return ARMS[name]


def _settings(method, epsilon: float, tau: float):
    """(algorithm, its hyperparameters) from the sliders, with τ for both signs."""
    if isinstance(method, Algorithm):
        return method, {}
    if method == "one-sided":
        return from_gate(one_sided(tau)), {}
    both = {"epsilon_low": min(epsilon, 0.99), "epsilon_high": epsilon}
    return ALGORITHMS[method], {
        "grpo": both,
        "dapo": {**both, "epsilon_high": 1.4 * epsilon},
        "gspo": {k: v / 100 for k, v in both.items()},
        "cispo": {"max_ratio": 1 + epsilon},
        "gmpo": both,
        "sapo": {"tau_pos": tau, "tau_neg": tau},
    }[method]


EDGES = np.linspace(-1.225, 1.225, 50)
RATIOS = np.linspace(0.0043, 3, 400)


def _named(name: str) -> str:
    return ALGORITHMS[name].title if name in ALGORITHMS else name


class Gate(NamedTuple):
    """A method's gate over `RATIOS`, of a sign's tokens in bins, and what it keeps."""

    curve: np.ndarray
    counts: np.ndarray
    kept: float


class Row:
    """The panels of one sign: gates left, what they keep of the stale tokens right."""

    def __init__(self, axes, sign: int, rollout: stale.Stale, known: Mapping):
        self.sign, self.rollout, self.known = sign, rollout, known
        self.ours = (rollout.advantages.sign() == sign)[:, None] & rollout.mask.bool()
        z = rollout.z[16][self.ours].double().numpy()
        weight = rollout.advantages.abs()[:, None] * rollout.mask
        weight = weight / rollout.mask.sum(-1, keepdim=True)
        self.push = weight[self.ours].double().numpy() * np.exp(z)
        self.place = np.clip(z, -1.2, 1.2)
        self.known_gates: dict[tuple, Gate] = {}
        self.panels(*axes)

    def panels(self, left, right) -> None:
        middle = (EDGES[1:] + EDGES[:-1]) / 2
        every, _ = np.histogram(self.place, EDGES)
        right.stairs(every, EDGES, fill=True, color="#E3E3DF")
        self.lines, self.steps = [], []
        for dash, width in (("-", 2.6), ("--", 2.2)):
            self.lines += left.plot(RATIOS, RATIOS, dash, lw=width)
            look = {"lw": width, "drawstyle": "steps-mid"}
            self.steps += right.plot(middle, every, dash, **look)
        draw.rule(left, x=1)
        draw.rule(right, x=0)
        name = draw.SIGNS[self.sign]
        left.set(title=f"{name}: gate $g$", xlabel="ratio $r$")
        left.set(xlim=(0, 3), ylim=(-0.06, 1.75), yticks=(0, 0.5, 1))
        right.set(title=f"{name}: {len(self.place)} tokens", xlabel="$\\log r$")
        right.set(yscale="log", ylim=(0.4, 900))
        draw.plain_ticks(right.yaxis, (1, 10, 100))
        at = {"x": 0.04, "va": "top", "transform": left.transAxes}
        left.text(y=0.98, s="push kept", **at)
        self.shares = [left.text(y=y, s="", weight="bold", **at) for y in (0.87, 0.77)]

    def gate(self, name: str, epsilon: float, tau: float) -> Gate:
        """Remembered under what the method looks at."""
        warm = name in ("sapo", "one-sided")
        key = (name, tau if warm else None, None if warm else epsilon)
        if key not in self.known_gates:
            algorithm, given = _settings(self.known[name], epsilon, tau)
            g = tokens.numbers(algorithm, answers=self.rollout, **given)["g"]
            g = g[self.ours].numpy().clip(0, 1)
            one = curve(algorithm, self.sign, torch.from_numpy(RATIOS), **given)
            counts, _ = np.histogram(self.place, EDGES, weights=g)
            kept = float((self.push * g).sum())
            self.known_gates[key] = Gate(one.gate.numpy(), counts, kept)
        return self.known_gates[key]

    def draw(self, i: int, name: str, epsilon: float, tau: float) -> list:
        """Draw the method's gate, or that of the other method; return what moves."""
        gate = self.gate(name, epsilon, tau)
        wide = name != "sapo" or tau < 4
        moved = [self.lines[i], self.steps[i], self.shares[i]]
        for artist in moved:
            artist.set_color(style.look(name)[0] if wide else style.SAPO_NARROW[0])
        self.lines[i].set_ydata(gate.curve)
        self.steps[i].set_ydata(np.maximum(gate.counts, 1e-3))
        share = 100 * gate.kept / self.push.sum()
        self.shares[i].set_text(f"{share:\u2007>3.0f} %  {_named(name)}")
        return moved
