"""What several chapters draw: curves of a loss, a training run, its habits, pairs."""

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.kit.plots import primitives as draw
from course.kit.plots.style import FREE, HABIT_COLOURS, INK, looks_of
from refimpl.curves import Curve
from refimpl.history import History
from refimpl.lab.statistics import estimate

PANELS = (
    ("reward", "reward (training)"),
    ("habit/careful", "share of careful answers"),
    ("completions/mean_length", "response length (tokens)"),
    ("entropy", "entropy (nats/token)"),
    ("clip_ratio/region_mean", "clipped tokens (sign-aware)"),
    ("ratio/max_deviation", "largest |ratio − 1|"),
)


def curves(
    named: Mapping[str, Mapping[int, Curve]],
    colours: Sequence[str] = (),
    title: str = "",
) -> Figure:
    """Objective (top) and gradient coefficient c = g r (bottom), for both signs of Â.

    `named[label][+1]` and `named[label][-1]` are curves for the two signs. Where curves
    coincide, the earlier one is drawn wider and shines through the gaps of the later
    ones. `colours` replaces the labels' own; `title` states the finding.
    """
    figure, axes = plt.subplots(2, 2, figsize=(8, 5.6), sharex=True, sharey="row")
    looks = looks_of(named)
    if colours:
        looks = [(colour, dash) for colour, (_, dash) in zip(colours, looks)]
    for column, (sign, name) in zip(axes.T, draw.SIGNS.items()):
        for place, (by_sign, look) in enumerate(zip(named.values(), looks)):
            one, width = by_sign[sign], _widths(len(named))[place]
            label = list(named)[place]
            draw.line(column[0], one.ratio, one.objective, *look, label, lw=width)
            draw.line(column[1], one.ratio, one.coefficient, *look, label, lw=width)
        for axis in column:
            draw.rule(axis, x=1)
        column[0].set_title(name)
        column[1].set_xlabel(r"ratio $r = \pi_\theta / \pi_{old}$")
    axes[0, 0].set_ylabel("objective")
    axes[1, 0].set_ylabel("coefficient $c = g\\,r$")
    return draw.heading(figure, axes[0, 0], title)


def _widths(count: int) -> list[float]:
    """Line widths from the first curve to the last, which lies on top."""
    return [4.0, *[2.2] * (count - 1)] if count > 1 else [2.2]


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


def rewards_and_clips(runs: Mapping[str, Sequence[History]], title: str) -> Figure:
    """Two panels: the reward, and the share of clipped tokens, 0 above the edge."""
    panels = [p for p in PANELS if p[0] in ("reward", "clip_ratio/region_mean")]
    figure = training(runs, panels, title)
    clipped = figure.axes[1]
    clipped.set_ylim(bottom=-0.03 * clipped.get_ylim()[1])
    return figure


def habit_shares(axis, history: History | Sequence[History]) -> None:
    """The share of each habit by rollout, of one run or several."""
    runs = as_runs(history)
    for name, colour in HABIT_COLOURS.items():
        draw.band(axis, [run[f"habit/{name}"] for run in runs], colour, name)
    axis.set(title="share of each habit", ylim=(-0.02, 1.02))
    draw.rollout_axis(axis, 6)


def as_runs(history: History | Sequence[History]) -> list[History]:
    """A list of runs, whether one was given or several."""
    return [history] if isinstance(history, History) else list(history)


def habits(
    history: History | Sequence[History], title: str = "", least: float = 0.05
) -> Figure:
    """What was learned: the share of each habit, and how often each is right.

    Accuracy is shown where a habit has at least `least` of the answers. Below that it
    is that of two or three answers, and jumps between 0 and 1.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4))
    habit_shares(left, history)
    for name, colour in HABIT_COLOURS.items():
        held = []
        for run in as_runs(history):
            shares, accuracy = run[f"habit/{name}"], run[f"habit_accuracy/{name}"]
            pairs = zip(shares, accuracy)
            held.append([a if s >= least else math.nan for s, a in pairs])
        draw.band(right, held, colour, name, what="")
    right.set_title(f"accuracy, where above {least:.0%} of answers")
    right.set_ylim(-0.02, 1.02)
    draw.rollout_axis(right, 6)
    return draw.heading(figure, left, title)


def pairs_by_start(axis, by_start: Mapping[int, Sequence[float]]) -> None:
    """What each pair of runs says, by warm start; their mean and its 95 % interval."""
    for start, values in by_start.items():
        axis.plot([start] * len(values), values, "o", color=FREE[1], alpha=0.8)
    made = estimate(by_start)
    axis.axhspan(made.low, made.high, color=FREE[3], alpha=0.35, linewidth=0)
    axis.axhline(made.effect, color=INK, linewidth=1.6)
    draw.rule(axis, y=0, colour=INK, dash=":", width=1.4)
    axis.set(xlabel="warm start", xticks=range(5))
