"""Figures of chapter 12: the ledger, the rates at which methods break, the audit."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from course import explorer
from course.plots import primitives as draw
from course.plots.style import BLACK, FREE, GREY, INK, RIGHT, WRONG
from course.plots.style import colour as colour_of
from refimpl.experiments.claims import CLAIMS, RATES, Claim, Contrast
from refimpl.experiments.statistics import Estimate, estimate

VERDICTS = {
    "reproduced": RIGHT,
    "contradicted": WRONG,
    "not seen": FREE[1],
    "not testable here": GREY,
}
EDGE = 6.0
"""Where an interval is cut off, in units of the smallest effect that matters."""


def ledger(lines: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Every claim's effect and interval, in units of the smallest that matters.

    To the right is what the paper claims, whatever its sign. Between −1 and 1 an effect
    is too small to matter.
    """
    by_number = {claim.number: claim for claim in CLAIMS}
    known = [x for x in lines if x["claim"] in by_number and x["effect"] is not None]
    figure, axis = plt.subplots(figsize=(8, 0.42 * len(known) + 1.6))
    axis.axvspan(-1, 1, color=GREY, alpha=0.15, linewidth=0)
    draw.rule(axis, x=0, colour=INK, dash="-")
    for y, line in enumerate(known):
        claim = by_number[line["claim"]]
        unit = claim.sign * claim.smallest
        low, high = sorted((line["low"] / unit, line["high"] / unit))
        shade = VERDICTS[line["verdict"]]
        within = [max(-EDGE, min(EDGE, x)) for x in (low, high)]
        axis.plot(within, [y, y], color=shade, linewidth=2.4, solid_capstyle="butt")
        for bound, mark in ((low, "<"), (high, ">")):
            if abs(bound) > EDGE:
                end = math.copysign(EDGE, bound)
                axis.plot(end, y, mark, color=shade, markersize=7, clip_on=False)
        effect = line["effect"] / unit
        if abs(effect) <= EDGE:
            axis.plot(effect, y, "o", color=shade, markersize=7)
        axis.text(
            1.01,
            y,
            f"{line['verdict']}, n = {line['starts']}",
            transform=axis.get_yaxis_transform(),
            va="center",
            size=10,
            color=BLACK,
        )
    draw.row_labels(axis, [f"{x['claim']}  {x['title']}" for x in known], size=10)
    axis.set(
        xlim=(-EDGE - 0.2, EDGE + 0.2),
        xlabel="effect ÷ smallest that matters; right: as claimed",
    )
    draw.finding(figure, title)
    draw.caption(figure, "95 % intervals over n warm starts; grey: too small to matter")
    return figure


def breaking(rates: Mapping[int, Mapping[str, Sequence[float]]], title: str) -> Figure:
    """The rate at which each method breaks: a panel per K, a dot per warm start.

    `rates[K][method]` holds one rate for each start. Bars are 95 % intervals of the
    mean over starts, in octaves.
    """
    methods = list(next(iter(rates.values())))
    figure, axes = draw.panel_grid(
        len(rates), (8, 0.4 * len(methods) + 1.7), sharey=True
    )
    for axis, (updates, own) in zip(axes, rates.items()):
        for y, method in enumerate(methods):
            found = [math.log2(rate) for rate in own[method]]
            shade = colour_of(method, default=FREE[1])
            axis.plot(
                [2**x for x in found], [y] * len(found), "o", color=shade, alpha=0.6
            )
            made = estimate({n: [x] for n, x in enumerate(found)})
            if made.known:
                axis.plot([2**made.low, 2**made.high], [y, y], color=BLACK, linewidth=2)
        axis.set_xscale("log")
        axis.set(xlim=(RATES[0] / 2.4, RATES[-1] * 1.2), title=f"K = {updates}")
        draw.plain_ticks(axis.xaxis, (1e-4, 4e-4, 1.6e-3, 6.4e-3))
        axis.set_xlabel("learning rate")
    draw.row_labels(axes[0], methods)
    draw.finding(figure, title)
    draw.caption(figure, "dots: warm starts; bars: 95 % interval of their mean")
    return figure


OUTCOMES = ("reward", "accuracy", "entropy", "length", "spread", "kl")
"""Outcomes that the audit offers beside the declared one."""


def audit(table: pd.DataFrame, claims: Sequence[Claim] = CLAIMS) -> explorer.Explorer:
    """A claim's interval under other outcomes, seeds, clusters and thresholds."""
    known = {
        f"{claim.number}  {claim.title}": claim
        for claim in claims
        if isinstance(claim.effect, Contrast) and claim.effect.pairs(table)
    }
    figure, axis = plt.subplots(figsize=(8, 2.8))
    draw.rule(axis, x=0, colour=INK, dash="-")
    band = axis.axvspan(-1, 1, color=GREY, alpha=0.15, linewidth=0)
    (dots,) = axis.plot([], [], "o", color=FREE[1], alpha=0.7)
    (bar,) = axis.plot([], [], color=BLACK, linewidth=3)
    axis.set(ylim=(-0.6, 0.6), yticks=[], xlim=(-3, 3))
    axis.set_xlabel("effect ÷ threshold; right: as claimed")
    axis.set_title("0" * 60)

    def update(claim, outcome, seeds, clusters, threshold):
        chosen = known[claim]
        effect = chosen.effect
        if outcome != "as declared":
            effect = effect._replace(outcome=outcome, scale="difference")
        pairs = {s: own[:seeds] for s, own in effect.pairs(table).items()}
        if clusters == "runs":  # every run an observation of its own
            every = [x for own in pairs.values() for x in own]
            pairs = {n: [x] for n, x in enumerate(every)}
        made = estimate(pairs)
        unit = chosen.sign * chosen.smallest * threshold
        values = [sum(own) / len(own) / unit for own in pairs.values()]
        dots.set_data(values, [0.2] * len(values))
        bar.set_data([made.low / unit, made.high / unit], [-0.2, -0.2])
        axis.set_title(_said(chosen, made, threshold))
        return [dots, bar, axis.title, band]

    return explorer.Explorer(
        figure,
        update,
        {
            "claim": explorer.choice("claim", list(known), next(iter(known))),
            "outcome": explorer.choice(
                "outcome", ["as declared", *OUTCOMES], "as declared"
            ),
            "seeds": explorer.stops("seeds per start", [1, 2, 3, 4], 4),
            "clusters": explorer.choice(
                "one observation is", ["starts", "runs"], "starts"
            ),
            "threshold": explorer.slider("threshold × declared", 1.0, 0.2, 3.0, 0.1),
        },
    )


def _said(claim: Claim, made: Estimate, threshold: float) -> str:
    """The verdict that this choice would give, and what it rests on."""
    if not made.known:
        return "one observation: no interval"
    towards = sorted(claim.sign * x for x in (made.low, made.high))
    large = claim.sign * made.effect >= threshold * claim.smallest
    verdict = "not seen"
    if towards[1] < 0:
        verdict = "contradicted"
    elif towards[0] > 0 and large:
        verdict = "reproduced"
    return (
        f"{verdict}: {made.effect:.3g} [{made.low:.3g}, {made.high:.3g}], "
        f"n = {made.starts}"
    )
