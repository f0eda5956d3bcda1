"""Figures of chapter 11: all methods as one, gates on real tokens, the theorem."""

import math
import statistics
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from course import explorer, stale
from course.plots import primitives as draw
from course.plots import style, tokens
from course.plots.sapo import PARTS
from course.plots.style import BAD, BLACK, FREE, GOOD, GREY, INK
from refimpl.algorithms import ALGORITHMS, Algorithm, from_gate
from refimpl.curves import Curve, curve
from refimpl.history import History
from refimpl.lab.arms import one_sided

MEAN, GRADIENT = FREE[1], FREE[0]
"""Errors of the mean gate, and of the gradient."""


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
        for sign, look in ((-1, (BAD, "--")), (1, (GOOD, "-"))):
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
    draw.heading(figure, axes[0], title)
    return figure


def surrogates(
    ratio, named: Mapping[str, Mapping[int, Sequence[float]]], title: str
) -> Figure:
    """f(r) with f' = gate and f(1) = 1, for both signs."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 4.4), sharey=True)
    for axis, (sign, name) in zip(axes, draw.SIGNS.items()):
        heights = {label: by_sign[sign] for label, by_sign in named.items()}
        draw.curve_panel(axis, ratio, heights, style.looks_of(named), title=name)
        axis.plot([1], [1], "o", color=BLACK, markersize=5)
        axis.set(xlabel="ratio $r$", ylim=(0, 3), xlim=(0, 3))
    axes[0].set_ylabel("objective $f(r)$")
    draw.heading(figure, axes[0], title, columns=3)
    return figure


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
    draw.heading(figure, axes[0], title, columns=4)
    return figure


def variances(named: Mapping[str, Sequence[float]], limit: float, title: str):
    """Histograms of Var_i on a log scale; what is smaller is gathered at the left."""
    figure, axes = draw.panel_grid(len(named), (8, 3.5), sharey=True)
    edges = [limit * 10 ** (0.25 * k) for k in range(-13, 12)]
    for axis, (name, values) in zip(axes, named.items()):
        small = [v for v in values if v < limit]
        draw.hist(axis, values, edges, FREE[3], len(values))
        draw.hist(axis, small, edges, FREE[1], len(values))
        draw.rule(axis, x=limit, colour=BLACK, dash="--", width=1.2)
        text = {"transform": axis.get_xaxis_transform(), "ha": "right", "va": "top"}
        share = f"{len(small) / len(values):.0%} below {limit:g}"
        axis.text(limit * 0.7, 0.97, share, **text)
        axis.set(xscale="log", title=name, xlabel="Var of log r in a response")
        draw.plain_ticks(axis.xaxis, (1e-4, 1e-2, 1))
    axes[0].set_ylabel("share of responses")
    draw.finding(figure, title)
    draw.caption(figure, "the responses of 5 rollouts per panel")
    return figure


def gap_and_gradient(panels, title: str) -> Figure:
    """Two errors against Var_i, with their bounds.

    A panel is (name, variances, gaps, gradient errors, bound, first-order bound).
    """
    figure, axes = draw.panel_grid(len(panels), (8, 4.6), sharey=True)
    grid = [10 ** (-4 + 0.1 * k) for k in range(51)]
    marks = {"s": 22, "alpha": 0.75, "linewidths": 0}
    for axis, (name, x, gaps, errors, second, first) in zip(axes, panels):
        bounds = {"its bound, (τ²/4) Var": second, "its bound, (2τ/3√3) √Var": first}
        lines = {label: [bound(v) for v in grid] for label, bound in bounds.items()}
        axis.scatter(x, gaps, color=MEAN, label="error of the mean gate", **marks)
        look = {"color": GRADIENT, "marker": "^", "label": "error of the gradient"}
        axis.scatter(x, errors, **look, **marks)
        looks = ((MEAN, "-"), (GRADIENT, "--"))
        draw.curve_panel(axis, grid, lines, looks, title=name)
        axis.set(xscale="log", yscale="log", xlim=(1e-3, 10), ylim=(1e-4, 8))
        axis.set_xlabel("Var of log r in a response")
    axes[0].set_ylabel("error (1: a whole gate)")
    draw.heading(figure, axes[0], title, columns=2)
    draw.caption(figure, f"one dot: one of {len(panels[0][1])} responses, one rollout")
    return figure


def left_of_it(shares: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """The mean gate of the tokens that moved on, and of those that come back."""
    figure, axis = plt.subplots(figsize=(8, 0.45 * len(shares) + 1.6))
    for part, offset in (("moving on", -0.2), ("coming back", 0.2)):
        rows = [row + offset for row in range(len(shares))]
        values = [by_part[part] for by_part in shares.values()]
        axis.barh(rows, values, height=0.38, color=PARTS[part], label=part)
    draw.rule(axis, x=1)
    draw.row_labels(axis, shares)
    axis.set_xlabel("mean gate of tokens with |log r| > 0.2  (1: nothing is taken)")
    draw.heading(figure, axis, title)
    return figure


def own_gate(named: Mapping[str, Mapping[int, Curve]], title: str) -> Figure:
    """Gate and coefficient of a few methods, for both signs."""
    figure, axes = plt.subplots(2, 2, figsize=(8, 5.8), sharex=True, sharey="row")
    looks = style.looks_of(named)
    for column, (sign, name) in zip(axes.T, draw.SIGNS.items()):
        for i, (label, look) in enumerate(zip(named, looks)):
            one, width = named[label][sign], 2.2 if i else 4
            draw.line(column[0], one.ratio, one.gate, *look, label, lw=width)
            draw.line(column[1], one.ratio, one.coefficient, *look, label, lw=width)
        column[0].set(title=name, ylim=(-0.05, 1.1))
        column[1].set(xlabel="ratio $r$", ylim=(-0.1, 3))
        for axis in column:
            draw.rule(axis, x=1)
    axes[0, 0].set_ylabel("gate $g$")
    axes[1, 0].set_ylabel("$c = g\\,r$")
    draw.heading(figure, axes[0, 0], title)
    return figure


def arms(
    runs: Mapping[str, Sequence[History]],
    panels: Sequence[tuple[str, str]],
    title: str,
) -> Figure:
    """Median over seeds and their range; the last panel is the final accuracy."""
    figure, (*axes, last) = draw.panel_grid(len(panels) + 1, (8, 6.2), 2)
    looks = style.looks_of(runs)
    draw.metric_panels(axes, runs, panels, looks, from_zero=False)
    final = {
        label: [h.accuracy for h in histories] for label, histories in runs.items()
    }
    draw.dots(last, final, [shade for shade, _ in looks])
    began = statistics.fmean(h["reward"][0] for hs in runs.values() for h in hs)
    draw.rule(last, x=began, colour=INK, dash="--", width=1.2)
    last.set(xlim=(-0.02, 1), title="final accuracy (dashed: at the start)", yticks=())
    for row, label in enumerate(final):
        last.text(0.99, row, label, ha="right", va="center", size=11)
    draw.heading(figure, axes[0], title)
    return figure


def debug(runs: Mapping[str, Sequence[History]], title: str) -> Figure:
    """Reward and entropy of runs, one of them broken."""
    panels = (("reward", "reward"), ("entropy", "entropy (nats/token)"))
    figure, axes = draw.panel_grid(2, (8, 3.2))
    draw.metric_panels(axes, runs, panels, style.looks_of(runs))
    draw.heading(figure, axes[0], title)
    return figure


def student(p: float, df: int) -> float:
    """The p quantile of Student's t, by Cornish and Fisher's series (to 0.5 %)."""
    z = statistics.NormalDist().inv_cdf(p)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / df + second / df**2 + third / df**3


def seeds(
    named: Mapping[str, tuple[float, bool]], title: str, most: int = 100
) -> Figure:
    """Smallest detectable effect by number of warm starts.

    `named[label]` is (sd, whether paired): the sd of the differences, or of one arm.
    """
    figure, axis = plt.subplots(figsize=(8, 4))
    n = range(4, most + 1)
    settings = list(dict.fromkeys(label.split(",")[0] for label in named))
    for label, (sd, paired) in named.items():
        shade = FREE[settings.index(label.split(",")[0])]
        effects = [detectable(sd, k, paired) for k in n]
        axis.plot(n, effects, "-" if paired else "--", color=shade, label=label)
    for k in (5, 10):
        draw.rule(axis, x=k)
    axis.set(xscale="log", yscale="log", xlabel="warm starts, n", xlim=(4, most))
    axis.set_ylabel("smallest detectable effect")
    draw.plain_ticks(axis.xaxis, (5, 10, 20, 50, 100))
    draw.plain_ticks(axis.yaxis, (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5))
    draw.heading(figure, axis, title, columns=2)
    return figure


def detectable(sd: float, n: int, paired: bool, alpha: float = 0.05) -> float:
    """The effect that n runs per arm show with power 0.8 in a two-sided t test.

    (t_{1 − α/2} + t_{0.8}) · sd / √n            paired: sd of the differences
    (t_{1 − α/2} + t_{0.8}) · sd · √(2/n)        unpaired: sd of an arm
    """
    df = n - 1 if paired else 2 * n - 2
    scale = math.sqrt((1 if paired else 2) / n)
    return (student(1 - alpha / 2, df) + student(0.8, df)) * sd * scale


METHODS = ("grpo", "dapo", "gspo", "cispo", "gmpo", "sapo", "one-sided", "yours")


def surrogate_explorer(yours: Algorithm) -> explorer.Explorer:
    """Two methods side by side, both signs: gates above, the stale tokens below.

    The histograms hold the tokens of `stale.load()` after 16 updates; the percentages
    are the shares of the tokens' push, Σ |w g r Â| / Σ |w r Â|, with w = 1/|o|.
    """
    rollout = stale.load()
    figure, axes = plt.subplots(2, 2, figsize=(8, 6.2), sharey="row")
    first, second = (_column(axes[:, i], (1, -1)[i], rollout) for i in (0, 1))
    axes[0, 0].set_ylabel("gate $g$")
    axes[1, 0].set_ylabel("tokens")
    known = dict(zip(METHODS, METHODS)) | {"yours": yours}

    def update(method, beside, epsilon, tau_pos, tau_neg) -> list:
        chosen = [
            (name, *_settings(known[name], epsilon, tau_pos, tau_neg))
            for name in (method, beside)
        ]
        gates = [
            tokens.numbers(algorithm, answers=rollout, **given)["g"]
            for _, algorithm, given in chosen
        ]
        return first(chosen, gates) + second(chosen, gates)

    return explorer.Explorer(
        figure,
        update,
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
    )


def _settings(method, epsilon: float, tau_pos: float, tau_neg: float):
    """(algorithm, its hyperparameters) from the sliders."""
    if isinstance(method, Algorithm):
        return method, {}
    if method == "one-sided":
        good, bad = one_sided(tau_pos), one_sided(tau_neg)
        return from_gate(lambda r, a: torch.where(a > 0, good(r, a), bad(r, a))), {}
    both = {"epsilon_low": min(epsilon, 0.99), "epsilon_high": epsilon}
    return ALGORITHMS[method], {
        "grpo": both,
        "dapo": {**both, "epsilon_high": 1.4 * epsilon},
        "gspo": {k: v / 100 for k, v in both.items()},
        "cispo": {"max_ratio": 1 + epsilon},
        "gmpo": both,
        "sapo": {"tau_pos": tau_pos, "tau_neg": tau_neg},
    }[method]


EDGES = np.linspace(-1.225, 1.225, 50)
RATIOS = np.linspace(0.0043, 3, 400)


def _column(axes, sign: int, rollout: stale.Stale):
    """Draw the panels of one sign; returns what moves them."""
    upper, lower = axes
    grid = torch.from_numpy(RATIOS)
    ours = (rollout.advantages.sign() == sign)[:, None] & rollout.mask.bool()
    z = rollout.z[16][ours].double().numpy()
    weight = rollout.advantages.abs()[:, None] * rollout.mask
    weight = (weight / rollout.mask.sum(-1, keepdim=True))[ours].double().numpy()
    push = weight * np.exp(z)
    place = np.clip(z, -1.2, 1.2)
    middle = (EDGES[1:] + EDGES[:-1]) / 2
    every, _ = np.histogram(place, EDGES)
    lower.stairs(every, EDGES, fill=True, color="#E3E3DF")
    lines, steps = [], []
    for dash, width in (("-", 2.6), ("--", 2.2)):
        lines += upper.plot(RATIOS, RATIOS, dash, lw=width)
        steps += lower.plot(middle, every, dash, lw=width, drawstyle="steps-mid")
    draw.rule(upper, x=1)
    draw.rule(lower, x=0)
    upper.set(
        title=draw.SIGNS[sign], xlim=(0, 3), ylim=(-0.06, 1.75), xlabel="ratio $r$"
    )
    upper.set_yticks((0, 0.5, 1))
    lower.set(yscale="log", ylim=(0.4, 900), xlabel="$\\log r$ of the stale tokens")
    lower.minorticks_off()
    head = f"push kept by {len(z)} tokens"
    upper.text(0.04, 0.95, head, transform=upper.transAxes, va="top")
    shares = [
        upper.text(0.04, y, "", transform=upper.transAxes, va="top", weight="bold")
        for y in (0.85, 0.75)
    ]

    def move(chosen, gates) -> list:
        for i, ((name, algorithm, given), g) in enumerate(zip(chosen, gates)):
            shade = style.look(name)[0]
            left = g[ours].numpy().clip(0, 1)
            one = curve(algorithm, sign, grid, **given)
            lines[i].set_ydata(one.gate.numpy())
            counts, _ = np.histogram(place, EDGES, weights=left)
            steps[i].set_ydata(np.maximum(counts, 1e-3))
            for artist in (lines[i], steps[i], shares[i]):
                artist.set_color(shade)
            share = (push * left).sum() / push.sum()
            title = ALGORITHMS[name].title if name in ALGORITHMS else name
            shares[i].set_text(f"{share * 100:\u2007>3.0f} %  {title}")
        return [*lines, *steps, *shares]

    return move
