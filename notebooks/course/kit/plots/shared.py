"""Figures that several chapters share: curves of a loss, training runs, pairs."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.kit.plots import primitives as draw
from course.kit.plots.style import FREE, INK, looks_of
from experiments.statistics import estimate
from refimpl.curves import Curve
from refimpl.history import History

PANELS = (
    ("reward", "reward (training)"),
    ("habit/careful", "share of careful answers"),
    ("completions/mean_length", "response length (tokens)"),
    ("entropy", "entropy (nats/token)"),
    ("clip_ratio/region_mean", "clipped tokens (sign-aware)"),
    ("ratio/max_deviation", "largest |ratio − 1|"),
)


def curves(
    named: Mapping[str, Mapping[int, Curve]], title: str = "", upper: str = "objective"
) -> Figure:
    """Objective or gate (`upper`) over the coefficient c = g r, for both signs of Â.

    `named[label][+1]` and `named[label][-1]` are curves for the two signs. Where curves
    coincide, the earlier one is drawn wider and shines through the gaps of the later
    ones. `title` states the finding.
    """
    figure, axes = plt.subplots(2, 2, figsize=(8, 5.6), sharex=True, sharey="row")
    for column, (sign, name) in zip(axes.T, draw.SIGNS.items()):
        for i, (label, look) in enumerate(zip(named, looks_of(named))):
            one = named[label][sign]
            width = 4.0 if i == 0 and len(named) > 1 else 2.2
            draw.line(column[0], one.ratio, getattr(one, upper), *look, label, lw=width)
            draw.line(column[1], one.ratio, one.coefficient, *look, label, lw=width)
        for axis in column:
            draw.rule(axis, x=1)
        column[0].set_title(name)
        column[1].set_xlabel(r"ratio $r = \pi_\theta / \pi_{old}$")
    axes[0, 0].set_ylabel(upper)
    axes[1, 0].set_ylabel("coefficient $c = g\\,r$")
    return draw.heading(figure, axes[0, 0], title)


def training(
    runs: Mapping[str, Sequence[History]],
    panels: Sequence[tuple[str, str]] = PANELS,
    title: str = "",
) -> Figure:
    """One panel per metric, one look per method: median over runs, and range.

    `title` states the finding. The line below the figure says how many runs there are.
    """
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = (8 if columns == 3 else 4 * columns, 2.5 * rows + 0.6)
    figure, axes = draw.panel_grid(len(panels), size, columns)
    draw.metric_panels(axes, runs, panels, looks_of(runs), ticks=4)
    if rows > 1:
        for axis in axes[:-columns]:
            axis.set_xlabel("")
    return draw.heading(figure, axes[0], title)


def by_rollout(
    runs: Mapping[str, draw.Runs], title: str, name: str, x: str = "rollout"
) -> Figure:
    """One number by rollout, or by what `x` names: median and range of every arm."""
    figure, axis = plt.subplots(figsize=(8, 3.4))
    for (label, values), look in zip(runs.items(), looks_of(runs)):
        draw.band(axis, values, look[0], label, look[1])
    draw.rollout_axis(axis)
    axis.set(ylabel=name, xlabel=x)
    if axis.dataLim.y0 >= 0:
        axis.set_ylim(bottom=0)
    return draw.heading(figure, axis, title)


def pairs_by_start(axis, by_start: Mapping[int, Sequence[float]]) -> None:
    """Draw pairs' differences by warm start, with their mean and 95 % interval."""
    for start, values in by_start.items():
        axis.plot([start] * len(values), values, "o", color=FREE[1], alpha=0.8)
    made = estimate(by_start)
    axis.axhspan(made.low, made.high, color=FREE[3], alpha=0.35, linewidth=0)
    axis.axhline(made.effect, color=INK, linewidth=1.6)
    draw.rule(axis, y=0, colour=INK, dash=":", width=1.4)
    axis.set(xlabel="warm start", xticks=range(5))
