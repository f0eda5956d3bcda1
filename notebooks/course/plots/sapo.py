"""Figures of chapter 10: stale tokens, gates, what they keep, the stored runs."""

import statistics
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

from course.plots import primitives as draw
from course.plots import shared
from course.plots.style import BLACK, FREE, INK, colour, looks_of
from refimpl.curves import Curve, curve
from refimpl.history import History
from refimpl.lab.statistics import estimate

MOVING, RETURNING = FREE[0], FREE[3]
"""Tokens further along the way that Â asks, and tokens that went the other way."""
PARTS = {"near 1": "#D8D8D4", "moving on": MOVING, "coming back": RETURNING}


def problem(r: Tensor, A: Tensor, title: str) -> Figure:
    """Histograms of the ratios for either sign, with the range of GRPO's clip."""
    figure, axes = plt.subplots(2, 1, figsize=(8, 4.4), sharex=True)
    edges = [0.05 * k for k in range(51)]
    for axis, (sign, name) in zip(axes, draw.SIGNS.items()):
        ratios = r[A.sign() == sign]
        above, below = ratios[ratios > 1.2], ratios[ratios < 0.8]
        onward, back = (above, below) if sign > 0 else (below, above)
        groups = {
            "near 1": ratios[(ratios >= 0.8) & (ratios <= 1.2)],
            "moving on": onward,
            "coming back": back,
        }
        says = {"moving on": ": no gradient", "coming back": ": whole gradient"}
        for part, values in groups.items():
            label = part + says.get(part, "")
            draw.hist(axis, values.tolist(), edges, PARTS[part], log=True, label=label)
        for x in (0.8, 1.2):
            draw.rule(axis, x=x, colour=INK, dash="--", width=1.2)
        axis.set(ylabel="tokens", xlim=(0, 2.5), ylim=(0.7, 900))
        axis.minorticks_off()
        axis.text(0.99, 0.9, name, transform=axis.transAxes, ha="right", va="top")
    axes[1].set_xlabel("ratio $r$ after 16 updates (last bar: 2.45 and more)")
    draw.heading(figure, axes[0], title, columns=3)
    return figure


def curves(named: Mapping[str, tuple[str, dict]], title: str) -> Figure:
    """`shared.curves` with all objectives raised to Â at r = 1: only slopes matter."""

    def raised(name: str, sign: int, settings: dict) -> Curve:
        one = curve(name, sign, **settings)
        offset = one.objective[draw.nearest(one.ratio, 1)] - sign
        return one._replace(objective=one.objective - offset)

    figure = shared.curves(
        {
            label: {sign: raised(name, sign, settings) for sign in (1, -1)}
            for label, (name, settings) in named.items()
        },
        title=title,
    )
    figure.axes[0].set_ylabel("objective, moved to\n$\\hat{A}$ at $r = 1$")
    return figure


def gates(named: Mapping[str, Mapping[int, Curve]], title: str) -> Figure:
    """The gate g against the ratio, for both signs."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True)
    for axis, (sign, name) in zip(axes, draw.SIGNS.items()):
        for i, (label, look) in enumerate(zip(named, looks_of(named))):
            one = named[label][sign]
            draw.line(axis, one.ratio, one.gate, *look, label, lw=4 if i == 0 else 2.2)
        draw.rule(axis, x=1)
        axis.set(title=name, xlabel="ratio $r$", ylim=(-0.04, 1.1))
    axes[0].set_ylabel("gate $g$")
    draw.heading(figure, axes[0], title, columns=2)
    return figure


def kept(shares: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Stacked bars: where the push that a gate keeps comes from."""
    figure, axis = plt.subplots(figsize=(8, 0.42 * len(shares) + 1.6))
    draw.stacked(axis, shares, PARTS)
    axis.set_xlabel(r"push kept, as a share of the unclipped $\sum |w\,r\,\hat{A}|$")
    draw.heading(figure, axis, title, columns=3)
    return figure


def differences(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    intervals: Mapping[str, Mapping[str, tuple[float, float]]],
    title: str,
) -> Figure:
    """Differences by warm start: dots, the mean, and its interval.

    `panels[outcome][row]` holds one difference per start, `intervals` likewise.
    """
    figure, axes = draw.panel_grid(len(panels), (8, 3.9), sharey=True, sharex=True)
    for axis, (outcome, rows) in zip(axes, panels.items()):
        for i, (name, values) in enumerate(rows.items()):
            shade = FREE[1] if "SAPO" in name else FREE[2]
            axis.plot(values, [i + 0.18] * len(values), "o", color=shade, alpha=0.55)
            axis.plot(intervals[outcome][name], [i - 0.15] * 2, color=shade, lw=3)
            axis.plot(statistics.fmean(values), i - 0.15, "D", color=BLACK, ms=5.5)
        draw.rule(axis, x=0, colour=INK, dash="-", width=1)
        axis.set(title=outcome, xlabel="one-sided 8.8 minus this arm")
        draw.row_labels(axis, [f"{k}, n = {len(v)}" for k, v in rows.items()])
    draw.finding(figure, title)
    draw.caption(figure, "dots: warm starts; diamond and bar: mean and 95 % interval")
    return figure


def why(panels: Mapping[str, Mapping[str, Sequence[float]]], title: str) -> Figure:
    """One panel per outcome, one row per arm, one dot per warm start."""
    figure, axes = draw.panel_grid(len(panels), (8, 3.3), sharey=True)
    for axis, (outcome, rows) in zip(axes, panels.items()):
        looks = looks_of(reversed(rows))[::-1]  # so that arms look as in `10_stale`
        draw.dots(axis, rows, [shade for shade, _ in looks])
        axis.set_title(outcome, fontsize=12)
        axis.set_xlabel("nats")
    axes[-1].set(xlim=(-0.03, 1.03), xlabel="share")
    draw.finding(figure, title)
    return figure


def asymmetry(runs: Mapping[str, Mapping[str, Sequence[float]]], title: str) -> Figure:
    """Final accuracy by arm, one panel per setting."""
    figure, axes = draw.panel_grid(len(runs), (8, 3.2), sharey=True)
    for axis, (setting, by_arm) in zip(axes, runs.items()):
        draw.dots(axis, by_arm, [colour("SAPO, τ = 8.8")], vertical=True, what="")
        axis.set(title=setting, ylim=(-0.03, 1.03))
        axis.set_xlabel(r"$\tau_{neg}$ as a multiple of $\tau_{pos}$")
    axes[0].set_ylabel("held-out accuracy")
    draw.finding(figure, title)
    counts = sorted({len(v) for by_arm in runs.values() for v in by_arm.values()})
    number = " or ".join(map(str, counts))
    draw.caption(figure, f"dots: single runs ({number} per column), bar: median")
    return figure


def debug(runs: Mapping[str, Sequence[History]], title: str) -> Figure:
    """Reward, and the norm of the gradient on a log scale."""
    panels = (("reward", "reward"), ("grad_norm", "norm of the gradient"))
    figure, axes = draw.panel_grid(2, (8, 3.2))
    draw.metric_panels(axes, runs, panels, looks_of(runs), from_zero=False)
    axes[0].set_ylim(0, 1)
    axes[1].set_yscale("log")
    draw.heading(figure, axes[0], title)
    return figure


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean: Student's t over warm starts."""
    made = estimate({start: [value] for start, value in enumerate(values)})
    return made.low, made.high
