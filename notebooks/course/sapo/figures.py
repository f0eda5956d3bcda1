"""Figures of chapters 10 and 10b: gates, what they keep, the stored runs."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from course.kit.plots import primitives as draw
from course.kit.plots.shared import curves
from course.kit.plots.style import BLACK, FREE, INK, looks_of
from experiments.statistics import Estimate
from refimpl.curves import Curve

MOVING, RETURNING = FREE[0], FREE[3]
"""Tokens further along the way that Â asks, and tokens that went the other way."""
PARTS = {"near 1": "#D8D8D4", "moving on": MOVING, "coming back": RETURNING}


def gates(named: Mapping[str, Mapping[int, Curve]], title: str) -> Figure:
    """Gate and coefficient; shaded is where a token comes back to 1."""
    figure = curves(named, title, upper="gate")
    for i, axis in enumerate(figure.axes):
        side = (1, 2.98) if i % 2 else (0.02, 1)
        axis.axvspan(*side, color=RETURNING, alpha=0.16, lw=0)
        axis.set_xlim(0, 3)
    return draw.caption(figure, "shaded: the side from which a token comes back to 1")


def left(shares: Mapping[str, Mapping[str, float]], title: str, what: str) -> Figure:
    """Two bars per gate: what it leaves of tokens, by where they went."""
    figure, axis = plt.subplots(figsize=(8, 0.62 * len(shares) + 1.7))
    parts = {"moving on": (MOVING, -0.2), "coming back": (RETURNING, 0.2)}
    for part, (ink, offset) in parts.items():
        for row, by_part in enumerate(shares.values()):
            label = None if row else part
            axis.barh(row + offset, by_part[part], 0.36, color=ink, label=label)
            text = f"{by_part[part]:.0%}"
            axis.text(by_part[part] + 0.01, row + offset, text, va="center", size=11)
    draw.row_labels(axis, shares)
    axis.tick_params("y", length=0)
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set(xlim=(0, 1.08), xlabel=what)
    axis.grid(axis="y", visible=False)
    return draw.heading(figure, axis, title)


def kept(shares: Mapping[str, Mapping[str, float]], rest: float, title: str) -> Figure:
    """The share of the push that gates keep; `rest` is that of the tokens near 1."""
    figure = left(shares, title, "share of the push that the gate keeps")
    near = f"left out: tokens within 0.2 of ratio 1, which have {rest:.0%} of all push"
    return draw.caption(figure, near)


def differences(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    made: Mapping[str, Mapping[str, Estimate]],
    title: str,
    of_what: str = "one-sided 8.8 minus this arm",
) -> Figure:
    """Differences by warm start, of this kind: dots, the mean, and its interval.

    `panels[outcome][row]` holds one difference per start, `made` what is
    known of their mean.
    """
    figure, axes = draw.panel_grid(len(panels), (8, 3.9), sharey=True, sharex=True)
    for axis, (outcome, rows) in zip(axes, panels.items()):
        for i, (name, values) in enumerate(rows.items()):
            shade = FREE[1] if "SAPO" in name else FREE[2]
            axis.plot(values, [i + 0.18] * len(values), "o", color=shade, alpha=0.55)
            one = made[outcome][name]
            axis.plot([one.low, one.high], [i - 0.15] * 2, color=shade, lw=3)
            axis.plot(one.effect, i - 0.15, "D", color=BLACK, ms=5.5)
        draw.rule(axis, x=0, colour=INK, dash="-", width=1)
        axis.set(title=outcome, xlabel=of_what)
        draw.row_labels(axis, rows)
    draw.finding(figure, title)
    number = max(len(v) for rows in panels.values() for v in rows.values())
    told = f"dots: {number} warm starts; diamond and bar: mean and 95 % interval"
    return draw.caption(figure, told)


def openings(
    panels: Mapping[tuple[str, str], Mapping[str, Sequence[float]]], title: str
) -> Figure:
    """One panel per (outcome, unit), one row per gate, one dot per warm start."""
    figure, axes = draw.panel_grid(len(panels), (8, 3.3), sharey=True)
    for axis, ((outcome, unit), rows) in zip(axes, panels.items()):
        looks = looks_of(reversed(rows))[::-1]  # so that arms look as in `10_stale`
        draw.dots(axis, rows, [shade for shade, _ in looks])
        axis.set_title(outcome, fontsize=12)
        axis.set_xlabel(unit)
    axes[-1].set_xlim(-0.03, 1.03)
    return draw.finding(figure, title)


def paces(
    panels: Mapping[str, Mapping[str, Mapping[float, Estimate]]], title: str
) -> Figure:
    """Reward by learning rate, mean and interval: `panels[name][arm][rate]`."""
    figure, axes = draw.panel_grid(len(panels), (8, 3.8), sharey=True)
    for axis, (name, arms) in zip(axes, panels.items()):
        for (arm, by_rate), (ink, dash) in zip(arms.items(), looks_of(arms)):
            every = list(by_rate.values())
            middle, low, high = zip(*(one[:3] for one in every))
            draw.line(axis, list(by_rate), middle, ink, dash, arm)
            axis.fill_between(list(by_rate), low, high, color=ink, alpha=0.14, lw=0)
        axis.set(title=name, xscale="log", xlabel="learning rate", ylim=(0, 1))
        draw.plain_ticks(axis.xaxis, [*by_rate][::2])
    axes[0].set_ylabel("reward, mean of 30 rollouts")
    draw.heading(figure, axes[0], title)
    told = f"{every[0].starts} warm starts, a run each; band: 95 % interval of the mean"
    return draw.caption(figure, told)
