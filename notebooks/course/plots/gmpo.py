"""Figures of chapter 08: wild tokens, one token among T, ranges of log-ratios."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import primitives as draw
from course.plots.style import BLACK, COLOURS, GREEN, ORANGE, RED, colour
from refimpl.history import History

GRPO, GMPO = COLOURS["grpo"], COLOURS["gmpo"]
OWN = {"GRPO, wide clip": ORANGE}


def wild_tokens(largest, arithmetic, geometric, rows: dict[str, Sequence[float]]):
    """Left: the means against a response's largest ratio. Right: shares of weight."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4))
    style = {"s": 14, "alpha": 0.6, "linewidths": 0}
    left.scatter(largest, arithmetic, color=GRPO, label="arithmetic mean", **style)
    left.scatter(largest, geometric, color=GMPO, label="geometric mean", **style)
    draw.rule(left, y=1)
    left.set(xlabel="largest token ratio of the response", title="a response's mean")
    left.set_ylabel("mean of its token ratios")
    left.legend(loc="upper left")
    ordered = {label: sorted(shares, reverse=True) for label, shares in rows.items()}
    draw.curve_panel(right, None, ordered, ((GRPO, "-"), (GMPO, "-")), ylim=(0, None))
    right.set(xlabel="responses, sorted", ylabel="largest ratio / mean ratio")
    right.set_title("how much the heaviest token outweighs the mean")
    right.legend(loc="lower left")
    return figure


def one_among(ratios, weights: dict[str, Sequence[float]], title: str = "") -> Figure:
    """The weight of one token against its own ratio, the others at 1."""
    figure, axis = plt.subplots(figsize=(7, 3.4))
    styles = ((GRPO, "-"), (BLACK, "-"), (GMPO, "--"), (RED, "-."))
    draw.curve_panel(axis, ratios, weights, styles, "upper left", title=title)
    draw.rule(axis, x=1)
    axis.set(xlabel="ratio of this token", ylabel="its weight × |o|")
    return figure


def sign_trap(grpo: Sequence[float], gmpo: Sequence[float]) -> Figure:
    """Two responses and their sum, under both means."""
    figure, axis = plt.subplots(figsize=(6.5, 3))
    ticks = ["Â = +1\nr = 2, ½", "Â = −1\nr = 1¼, 1¼", "mean J"]
    draw.grouped_bars(
        axis, {"arithmetic": grpo, "geometric": gmpo}, (GRPO, GMPO), ticks
    )
    axis.set_ylabel("objective")
    axis.legend(loc="lower left")
    return figure


def stale_runs(
    runs: dict[str, Sequence[History]], panels: Sequence[tuple[str, str]]
) -> Figure:
    """Median and range over seeds; the first panel is the range of log-ratios."""
    figure, (first, *axes) = draw.panel_grid(1 + len(panels), (10, 5), 3)
    for label, histories in runs.items():
        for name in ("log_ratio/q01", "log_ratio/q99"):
            middle, _, _ = draw.summary([h[name] for h in histories])
            first.plot(draw.steps(middle), middle, color=colour(label, OWN))
    first.set_title("log-ratio: 1 % and 99 % quantile")
    draw.rule(first, y=0)
    draw.rollout_axis(first)
    styles = [(colour(label, OWN), "-") for label in runs]
    draw.metric_panels(axes, runs, panels, styles, from_zero=False)
    axes[0].legend(loc="lower right", fontsize=9)
    return figure


def accuracies(runs: dict[str, Sequence[float]], before: float) -> Figure:
    """Held-out accuracy of every seed, one row per arm."""
    figure, axis = plt.subplots(figsize=(7, 2.2))
    draw.dots(axis, runs, [colour(label, OWN) for label in runs])
    draw.rule(axis, x=before, colour=GREEN, width=1.8, label="warm start")
    axis.set(xlim=(0, 1.02), xlabel="held-out accuracy (bar: median)")
    axis.legend(loc="upper left")
    return figure
