"""Figures of chapter 15: a sampler that is not the trainer."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from course.kit import explorer, stakes, stale
from course.kit.plots import primitives as draw
from course.kit.plots.style import BAD, FREE, GOOD, GREY, INK, PAPER
from course.late_sampler import late
from refimpl.corrections import factor
from refimpl.rollout import Batch

DROPPED = "#CBD2DA"


def clip_sees(seen: Sequence[late.Shares], title: str) -> Figure:
    """Tokens outside 1 ± 0.2 at each update, against π_old and against the sampler."""
    figure, axis = plt.subplots(figsize=(7.2, 3.4))
    at = torch.arange(len(seen)).double()
    names = (r"$\pi_\theta/\pi_{\mathrm{old}}$", r"$\pi_\theta/\mu$")
    for i, (name, colour) in enumerate(zip(names, (GREY, INK))):
        share = [100 * one[i] for one in seen]
        bars = axis.bar(at + 0.4 * i - 0.2, share, 0.38, color=colour, label=name)
        axis.bar_label(bars, [f"{x:.1f}" for x in share], fontsize=10)
    axis.set_xticks(at, [f"update {k + 1}" for k in range(len(seen))])
    axis.set_ylabel("% of tokens")
    draw.heading(figure, axis, title)
    return draw.caption(figure, "1 rollout, 32 answers per update")


def ages(width: int) -> torch.Tensor:
    """How many rollouts old the weights were that wrote each token of `in_flight`."""
    return (late.DELAY - torch.arange(width) // late.TOKENS).clamp(min=0)


def in_flight(batch: Batch, text: str, title: str) -> Figure:
    """One answer, shaded by the age of the weights that wrote each token, and the mean
    |log π_old − log μ| at each place over all answers."""
    figure, (top, axis) = plt.subplots(
        2, 1, figsize=(7.2, 3.9), sharex=True, height_ratios=(1, 2.4)
    )
    mask, width = batch.mask, len(text)
    apart = (batch.old_logp - batch.rollout.logp).abs() * mask
    gap = (apart.sum(0) / mask.sum(0).clamp(min=1))[:width].tolist()
    look = {"ha": "center", "va": "center"}
    top.bar(range(width), [1] * width, 0.94, color=PAPER)
    for t, (token, age) in enumerate(zip(text, ages(width).tolist())):
        shade = {"color": INK, "alpha": 0.12 + 0.2 * age}
        top.bar(t, 1, 0.94, **shade)
        axis.bar(t, gap[t], 0.94, **shade)
        ink = PAPER if age > 1 else INK
        top.text(t, 0.5, token, family="monospace", size=14, color=ink, **look)
    for age in range(late.DELAY + 1):
        at = (ages(width) == age).nonzero().float().mean().item()
        name = f"{age} rollouts old" if age > 1 else ("newest", "1 rollout old")[age]
        top.text(at, 1.4, name, size=9, color=INK, **look)
    top.set(ylim=(0, 1.8), xlim=(-0.7, width - 0.3))
    top.axis("off")
    axis.set(yscale="log", xticks=range(width), xlabel="token")
    axis.set_xticklabels(map(str, range(1, width + 1)), fontsize=9)
    axis.set_ylabel(r"$|\log\pi_{\mathrm{old}}-\log\mu|$, nats")
    draw.plain_ticks(axis.yaxis, (0.0001, 0.001, 0.01, 0.1, 1))
    draw.finding(figure, title)
    return draw.caption(
        figure, f"above: one answer; below: mean over {len(mask)} answers, log scale"
    )


LENGTHS = tuple(2**k for k in range(2, 11))
WEIGHTS = (
    ("geometric mean", FREE[3], "-", 6.0),
    ("none", FREE[1], "-", 2.2),
    ("token", FREE[1], "--", 2.2),
    ("sequence", INK, "-", 2.6),
    ("sequence, min(W, 3)", INK, "--", 2.2),
    ("sequence, 0 above 3", INK, ":", 2.2),
)
"""What `by_length` draws, from below: name, colour, dash, width."""


def by_length(title: str) -> Figure:
    """Bias and standard deviation of six weights, by the answer's length.

    Black is a whole answer's weight, in three forms; the geometric mean is a broad
    line, because it lies where no weight at all does.
    """
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.9))
    for name, colour, dash, width in WEIGHTS:
        both = zip(*(late.toy_gradient(T, name) for T in LENGTHS))
        for axis, y in zip(axes, both):
            draw.line(axis, LENGTHS, y, colour, dash, name, linewidth=width)
    for axis in axes:
        axis.set_xscale("log", base=2)
        draw.plain_ticks(axis.xaxis, (4, 16, 64, 256, 1024))
        axis.set_xlabel("length of the answer in tokens")
    axes[0].set(title="bias / true gradient", ylim=(-1.05, 0.1))
    axes[1].set(title="std / true gradient, 64 answers", yscale="log")
    axes[1].set_ylim(0.01, 200)
    draw.plain_ticks(axes[1].yaxis, (0.01, 0.1, 1, 10, 100))
    return draw.heading(figure, axes[0], title)


PANELS = (
    "clip, π_old recomputed",
    "clip against the sampler",
    "IcePop, 0.5 to C",
    "sequence mask, C",
    "mean k3, κ",
    "OPSM, δ",
)


def kept(z, mask, advantages, cap: float, kappa: float) -> list:
    """(B, T) for each of `PANELS`: whether a token has a gradient at the first update.

    `z` is log π_θ/μ. With π_old recomputed, the ratio that the clip sees is 1.
    """
    sign = advantages[:, None].sign()
    inside = ~((sign * z.expm1()) > 0.2)
    rules = (
        {"token_mask": (0.5, cap)},
        {"sequence_mask": cap},
        {"mean_k3": kappa},
        {"opsm": kappa},
    )
    zero = torch.zeros_like(z)
    ruled = [factor(rule, z, zero, mask, advantages) > 0 for rule in rules]
    return [mask.bool(), inside, *(one.expand_as(mask) for one in ruled)]


def kept_explorer() -> explorer.Explorer:
    """Which tokens of 16 answers six rules keep, by how far the sampler lags."""
    every = stale.load()
    good, bad = ((every.advantages * s > 0).nonzero()[:8, 0] for s in (1, -1))
    few = every.rows([*good.tolist(), *bad.tolist()])
    mask, advantages = few.mask, few.advantages
    figure, axes = plt.subplots(2, 3, figsize=(8, 4.6))
    good_row = (advantages > 0)[:, None].expand_as(mask)
    tokens, labels = [], []
    for axis, name in zip(axes.flat, PANELS):
        look = {"linewidth": 5.5, "solid_capstyle": "butt"}
        every_kind = (DROPPED, GOOD, BAD)
        tokens.append([axis.plot([], [], color=c, **look)[0] for c in every_kind])
        axis.set(xticks=[], yticks=[], ylim=(len(mask) - 0.4, -0.6))
        axis.set_xlim(-0.5, mask.shape[1] - 0.5)
        axis.grid(False)
        axis.set_title(name, fontsize=11)
        below = {"transform": axis.transAxes, "ha": "center", "va": "top"}
        labels.append(axis.text(0.5, -0.04, "", fontsize=10, **below))
    at = torch.arange(mask.shape[1]).double().expand_as(mask)
    edges = torch.stack([at - 0.5, at + 0.5, at], -1).flatten()
    rows = torch.arange(len(mask)).double()[:, None, None]

    axes[0, 0].set_ylabel("answers", fontsize=10)
    axes[1, 0].set_ylabel("answers", fontsize=10)
    draw.caption(figure, "blue: good, red: bad answers; grey: dropped")

    def move(lag: int, cap: float, kappa: float) -> list:
        z = few.z[lag] * mask
        rules = kept(z, mask, advantages, cap, kappa)
        for lines, label, one in zip(tokens, labels, rules):
            left = one & mask.bool()
            kinds = mask.bool() & ~left, left & good_row, left & ~good_row
            for line, shown in zip(lines, kinds):
                y = torch.where(shown[..., None], rows, torch.nan).expand(-1, -1, 3)
                y = torch.cat([y[..., :2], y[..., 2:] * torch.nan], -1)
                line.set_data(edges.numpy(), y.flatten().numpy())
            share = (one * mask).sum() / mask.sum()
            some = left.any(-1).sum().item()
            label.set_text(f"{share:.0%} of tokens, {some} of 16 answers")
        clip, opsm = (
            1 - ((rules[i] * mask).sum() / mask.sum()).item() for i in (1, -1)
        )
        told = (
            f"{lag} updates late: the clip against μ drops {clip:.1%} of tokens, OPSM"
        )
        title = draw.say(figure, f"{told} {opsm:.0%}")
        return [*(line for lines in tokens for line in lines), *labels, title]

    def outcome(kappa: float) -> str:
        delta = stakes.nearest(kappa, (0.003, 0.01, 0.03))
        ended = late.accuracy("grpo")
        shown = {"No rule": "none", f"OPSM, δ = {delta:g}": f"OPSM, {delta:g}"}
        shown |= {"sequence mask, C = 3": "sequence mask, 3"}
        said = [f"{k}: {stakes.right([*ended[v].values()])}" for k, v in shown.items()]
        return f"Nearest stored runs (GRPO, 4 rollouts late). {'; '.join(said)}."

    return explorer.Explorer(
        figure,
        [move],
        {
            "lag": explorer.stops(
                "updates that the sampler lags", (0, 1, 2, 4, 8, 12, 16), 8
            ),
            "cap": explorer.stops(
                "C", [(f"{c:g}", c) for c in (1.2, 1.5, 2.0, 3.0, 5.0)], 3.0
            ),
            "kappa": explorer.stops("κ and δ", (0.001, 0.003, 0.01, 0.03, 0.1), 0.01),
        },
        {f"{k} updates late": {"lag": k} for k in (0, 4, 16)},
        stakes=outcome,
        prediction=stakes.Prediction(
            "Which rule drops tokens of bad answers only?",
            ("IcePop", "the sequence mask", "OPSM"),
            "OPSM",
            "It drops an answer only if its advantage is negative.",
        ),
        name="15_kept",
    )


def gains(title: str) -> Figure:
    """Draw the accuracy that each rule adds: pairs, mean and 95 % interval."""
    figure, axes = draw.panel_grid(2, (8, 5.0), sharey=True)
    rules = [*list(late.RULES)[1:], late.TWO]
    count = 0
    for axis, method in zip(axes, late.METHODS):
        every = late.accuracy(method)
        for row, rule in enumerate(rules):
            if rule not in every:
                axis.text(0, row, " no run", va="center")
                continue
            made = late.against(method, rule)
            count = max(count, made.starts)
            pairs = [y - every["none"][s] for s, y in every[rule].items()]
            axis.plot(pairs, [row] * len(pairs), "o", color=FREE[1], alpha=0.7)
            axis.plot([made.low, made.high], [row, row], color=INK, linewidth=1.6)
            axis.plot([made.effect] * 2, [row - 0.25, row + 0.25], color=INK, lw=2.4)
        draw.rule(axis, x=0, colour=INK, dash=":", width=1.4)
        axis.set(title=method.upper(), xlabel="gain in accuracy over no rule")
    draw.row_labels(axes[0], rules)
    draw.heading(figure, axes[0], title)
    told = f"dots: pairs of runs from one start, n = {count}"
    return draw.caption(figure, f"{told}; line: mean and 95 % interval")
