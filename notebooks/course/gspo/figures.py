"""Figures of chapter 05: token ratios against sequence ratios, and what is clipped."""

import itertools
import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from torch import Tensor

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import BLACK, COLOURS, FREE, METHOD_DASHES
from course.kit.plots.tokens import SHIFT
from course.kit.stale import Stale
from refimpl.seeds import generator

TOKEN, SEQUENCE = COLOURS["grpo"], COLOURS["gspo"]
BOUND = {"colour": FREE[0], "dash": "--", "width": 1.6}


def responses(rollout: Stale, z: Tensor, clipped: Tensor, rows: Sequence[int]):
    """Some responses token by token: how far each moved, and where the clip bites.

    `z` and `clipped` are (B, T), of the whole rollout.
    """
    figure, axis = plt.subplots(figsize=(8, 0.42 * len(rows) + 1.25))
    centred = {"va": "center", "ha": "center", "zorder": 5}
    for y, i in enumerate(rows):
        axis.text(-0.4, y + 0.45, rollout.prompts[i], ha="right", va="center")
        for x, character in enumerate(rollout.tokens[i]):
            far = max(-1.0, min(1.0, z[i, x].item() / 1.2))
            box = plt.Rectangle((x, y), 0.94, 0.86, color=SHIFT((1 + far) / 2), lw=0)
            axis.add_patch(box)
            if clipped[i, x]:
                frame = {"fill": False, "edgecolor": BLACK, "lw": 2.2, "zorder": 4}
                axis.add_patch(plt.Rectangle((x, y), 0.94, 0.86, **frame))
            shade = "white" if abs(far) > 0.75 else BLACK
            look = {"family": "monospace", "fontsize": 13, "color": shade}
            axis.text(x + 0.47, y + 0.45, character, **look, **centred)
        signed = f"{rollout.advantages[i]:+.1f}".replace("-", "−")
        end = len(rollout.tokens[i]) + 0.3
        axis.text(end, y + 0.45, rf"$\hat{{A}}$ = {signed}", va="center")
    widest = max(len(rollout.tokens[i]) for i in rows)
    axis.set(xlim=(-3.3, widest + 3.6), ylim=(len(rows), -0.15), xticks=[], yticks=[])
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.set_xlabel(
        "orange: more likely than when sampled, purple: less likely\n"
        "framed: clipped, the token has lost its gradient"
    )
    return draw.finding(
        figure, "The reward judges a response, the clip each token of it"
    )


def importance_weights(
    lengths: Sequence[int], table: Mapping[str, tuple[Sequence[float], Sequence[float]]]
) -> Figure:
    """Mean and standard deviation of three ratios under π_old, against length."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4))
    styles = zip(table.items(), (FREE[0], TOKEN, SEQUENCE), ("o-", "s--", "^-."))
    for (label, (means, deviations)), colour, mark in styles:
        left.plot(lengths, means, mark, color=colour, label=label, markersize=6)
        right.plot(lengths, deviations, mark, color=colour, markersize=6)
    for axis in (left, right):
        axis.set(xlabel="response length |o|", xscale="log")
        draw.plain_ticks(axis.xaxis, lengths)
    left.set(title=r"mean under $\pi_{old}$", ylim=(0.975, 1.005))
    right.set(title="standard deviation", yscale="log")
    draw.plain_ticks(right.yaxis, (0.03, 0.1, 0.3, 1, 3))
    title = "The product is right on average but runs wild; s is quiet but biased"
    return draw.heading(figure, left, title)


def by_length(lengths, log_s, predicted: Sequence[tuple[float, float, float]]):
    """|log s| of every response against its length, and what independent tokens give.

    `predicted` holds (length, σ_z/√|o|, root mean square of log s) of each bin.
    """
    figure, axis = plt.subplots(figsize=(8, 4))
    floor = 1e-4
    shown = [max(abs(float(v)), floor) for v in log_s]
    axis.scatter(lengths, shown, s=14, alpha=0.35, color=SEQUENCE, linewidths=0)
    n, noise, measured = zip(*predicted)
    draw.line(axis, n, measured, BLACK, "^-", r"measured: rms of $\log s$")
    draw.line(axis, n, noise, FREE[1], "o--", r"predicted: $σ_z/\sqrt{|o|}$")
    draw.rule(axis, y=4e-4, **BOUND, label=r"the paper's $\varepsilon_{\mathrm{high}}$")
    axis.set(xlabel="response length |o| (tokens)", ylabel=r"$|\log s|$")
    axis.set(yscale="log", ylim=(0.8 * floor, 1.5))
    draw.heading(figure, axis, "Short responses move farther than long ones")
    return draw.caption(figure, "One dot per response of 3 runs")


def scan(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """GRPO beside GSPO at several ε: one panel per quantity, one dot per run."""
    figure, axes = draw.panel_grid(len(panels), (8, 3.8))
    for axis, (title, named) in zip(axes, panels.items()):
        colours = [TOKEN if label.startswith("GRPO") else SEQUENCE for label in named]
        marks = ["s" if label.startswith("GRPO") else "o" for label in named]
        draw.dots(axis, named, colours, marks, vertical=True)
        axis.set(title=title, xlabel="GSPO: multiple of the paper's ε")
    axes[0].set_yscale("log")
    draw.plain_ticks(axes[0].yaxis, (0.003, 0.01, 0.03, 0.1, 0.3, 1))
    return draw.finding(figure, "The more GSPO clips, the slower it learns here")


# The explorer: responses drawn from a model, and whom each clip silences

RESPONSES, LONGEST = 256, 400  # responses per sign
REACH = 3.0  # |log-ratio|, nats
_STEPS = torch.logspace(-4, math.log10(REACH), 28, dtype=torch.float64)
EDGES = torch.cat([-_STEPS.flip(0), _STEPS])
"""Bins on a logarithmic scale to both sides; one bin holds what is nearer than 1e-4."""


def shares(values: Tensor) -> Tensor:
    """The share of the values in each bin; the end bins hold what is beyond them."""
    inside = values.flatten().clamp(-0.999 * REACH, 0.999 * REACH)
    counts = torch.bincount(torch.bucketize(inside, EDGES) - 1, minlength=len(EDGES))
    return counts[: len(EDGES) - 1] / len(inside)


def gspo_explorer() -> explorer.Explorer:
    """Tokens' and responses' log-ratios, drawn anew from a model, and both clips.

    Every token's log-ratio is noise of spread σ; the first one, the fork, gets Δ more,
    in the direction of its advantage. Good responses left, bad ones right.
    """
    noise = torch.randn(2, RESPONSES, LONGEST, generator=generator(0)).double()
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 4.2), sharey=True)
    steps, far = zip(*map(_side, axes, (1, -1)))
    axes[0].set_ylabel("share per bin")
    draw.heading(figure, axes[0], columns=2)

    def drawn(sign: int, n: int, sigma: float, fork: float) -> Tensor:
        z = noise[int(sign < 0), :, :n] * sigma
        z[:, 0] += sign * fork
        return z

    def histograms(n: int, sigma: float, fork: float) -> list:
        for sign, patches in zip((1, -1), steps):
            z = drawn(sign, n, sigma, fork)
            # The eye needs no more than some thousand tokens.
            for patch, values in zip(patches, (z[: max(32, 8192 // n)], z.mean(-1))):
                patch.set_data(shares(values).numpy())
        return [*itertools.chain(*steps)]

    def beyond(sign: int, bound: float) -> list:
        patch = far[int(sign < 0)]
        patch.set_x(min(bound, sign * REACH))
        patch.set_width(abs(sign * REACH - bound))
        return [patch]

    def clipped(sign: int, bound: float, *model: float) -> tuple[Artist, float, float]:
        """Return the panel's title, and its shares of tokens and of responses."""
        z, axis = drawn(sign, *model), axes[int(sign < 0)]
        grpo = (sign * z > sign * STOP[sign]).double().mean().item()
        gspo = (sign * z.mean(-1) > sign * bound).double().mean().item()
        text = f"clipped: GRPO {grpo:.1%}, GSPO {gspo:.0%}"
        axis.set_title(f"{draw.SIGNS[sign]}\n{text}")
        return axis.title, grpo, gspo

    def beyond_high(high: float) -> list:
        return beyond(1, math.log1p(high))

    def beyond_low(low: float) -> list:
        return beyond(-1, math.log1p(-low))

    def good(high: float, n: int, sigma: float, fork: float) -> list:
        title, grpo, gspo = clipped(1, math.log1p(high), n, sigma, fork)
        return [title, draw.say(figure, _said(grpo, gspo))]

    def bad(low: float, n: int, sigma: float, fork: float) -> list:
        return [clipped(-1, math.log1p(-low), n, sigma, fork)[0]]

    def outcome(high: float) -> str:
        arms = {"GSPO, paper's ε": "GSPO 3e-4", "GRPO": "GRPO"}
        if stakes.nearest(high, (4e-4, 0.04)) == 0.04:
            arms = {"GSPO, a hundred times its ε": "GSPO 0.03", "GRPO": "GRPO"}
        return stakes.ended(arms, rate=8e-4, updates=4)

    return explorer.Explorer(
        figure,
        [histograms, beyond_high, beyond_low, good, bad],
        {
            "low": explorer.log_slider("ε low (GSPO)", 3e-4, 1e-4, 0.5),
            "high": explorer.log_slider("ε high (GSPO)", 4e-4, 1e-4, 0.5),
            "n": explorer.slider("length |o|", 30, 1, LONGEST, 1),
            "sigma": explorer.log_slider("spread σ of log r", 0.05, 0.005, 0.3),
            "fork": explorer.slider("fork Δ", 0.3, 0.0, 2.0, 0.05),
        },
        {
            "paper's ε": PAPER,
            "paper's ε × 100": {"low": 0.03, "high": 0.04},
            "a chain of thought": {"n": LONGEST, "sigma": 0.01, "fork": 0.0, **PAPER},
            "a short guess": {"n": 4, "sigma": 0.05, "fork": 1.0, **PAPER},
        },
        stakes=outcome,
        prediction=stakes.Prediction(
            "A chain of thought has 400 tokens of small noise. Which clip lets more of "
            "it through?",
            ("GRPO's, token by token", "GSPO's, answer by answer"),
            "GRPO's, token by token",
            "A mean over 400 tokens moves little, but GSPO's bound is narrower still.",
        ),
        name="05_spread",
    )


PAPER = {"low": 3e-4, "high": 4e-4}
"""The paper's ε."""


def _said(grpo: float, gspo: float) -> str:
    """The title: how much of good answers either clip leaves without a gradient."""
    told = f"GRPO's clip stops {grpo:.1%} of tokens, GSPO's {gspo:.0%} of responses"
    return f"Â > 0: {told}"


STOP = {1: math.log(1.2), -1: math.log(0.8)}
"""GRPO's bounds, as log-ratios."""


def _side(axis, sign: int):
    """One sign's panel; returns both histograms, and what GSPO's clip silences."""
    names = {"log r of tokens": TOKEN, "log s of responses": SEQUENCE}
    empty, edges = torch.zeros(len(EDGES) - 1), EDGES.tolist()
    steps = [
        axis.stairs(empty, edges, fill=True, color=colour, alpha=0.6, label=label)
        for label, colour in names.items()
    ]
    far = axis.axvspan(0, REACH, color=SEQUENCE, alpha=0.13, lw=0)
    far.set_label("GSPO: no gradient")
    look = {"colour": TOKEN, "dash": METHOD_DASHES["ppo"], "width": 1.8}
    draw.rule(axis, x=STOP[sign], label="GRPO's bound", **look)
    axis.set_xscale("symlog", linthresh=1e-4, linscale=0.6)
    axis.set(xlim=(-REACH, REACH), ylim=(0, 0.42), xlabel="log-ratio")
    ticks = [-1, -0.01, 0, 0.01, 1]
    axis.set_xticks(ticks, [f"{x:g}".replace("-", "−") for x in ticks])
    axis.minorticks_off()
    axis.set_title(f"{draw.SIGNS[sign]}\nclipped: GRPO 100.0 %, GSPO 100 %")
    return steps, far
