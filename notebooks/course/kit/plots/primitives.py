"""Elements that recur: bands, dots, curves, histograms, axes, legends.

Each takes an axis and draws on it; `panel_grid` makes the axes. `styles` is one
(colour, dash) per label, begun again when it runs out; a dash is any format that
`axis.plot` knows ("--", "o-"), or a pattern (0, (dash, gap, …)).

Functions that draw runs (`band`, `strands`, `dots`) also note at the lower right of the
figure how many runs there are and what is drawn.
"""

import math
import re
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, zip_longest

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import (
    FixedLocator,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from course.kit.plots.style import BLACK, FREE, GREY, INK, PAPER, Dash
from course.kit.plots.style import colour as colour_of
from refimpl.history import History

NARROW = 5.3
"""Inches: a picture, or a panel, of this width stands on a phone in letters that can be
read."""
SIGNS = {1: r"$\hat{A} > 0$", -1: r"$\hat{A} < 0$"}
LOG_METRICS = ("ratio/max_deviation", "grad_norm")
"""Metrics on a log scale: one wild token would flatten the rest."""

Runs = Sequence[Sequence[float]]
Styles = Iterable[tuple[str, Dash]]

BAND = "line: median, band: range"
STRANDS = "thin: single runs, thick: median"
DOTS = "dots: single runs, bar: median"


def median(values: Iterable[float]) -> float:
    """The median of the known values; NaN if there are none."""
    known = [float(x) for x in values if x == x]
    return statistics.median(known) if known else math.nan


def summary(runs: Runs) -> tuple[list[float], list[float], list[float]]:
    """Median, lowest and highest over the runs at every step.

    NaNs are left out, so a run that ended early counts as long as it lasted. If no run
    has a value, all three are NaN.
    """
    columns = zip_longest(*runs, fillvalue=math.nan)
    known = [[float(x) for x in column if x == x] for column in columns]
    known = [column or [math.nan] for column in known]
    middle, low, high = ([f(c) for c in known] for f in (median, min, max))
    return middle, low, high


def steps(values: Sequence) -> range:
    """1, 2, 3, …: the rollout or update that each value belongs to."""
    return range(1, len(values) + 1)


def nearest(grid: Sequence[float], x: float) -> int:
    """The index of the grid's point that is nearest to x."""
    return min(range(len(grid)), key=lambda i: abs(float(grid[i]) - x))


def canvas(width: float, height: float):
    """A figure and one bare axis that fills it and counts in inches."""
    # Without an engine of its own a figure gets rcParams' when it is saved.
    free = PlaceHolderLayoutEngine(adjust_compatible=True, colorbar_gridspec=True)
    figure = plt.figure(figsize=(width, height), layout=free)
    axis = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axis.axis("off")
    return figure, axis


def panel_grid(
    count: int, size: tuple[float, float], columns: int = 0, **settings
) -> tuple[Figure, list]:
    """A figure of `size` inches with `count` panels, in one row unless `columns`."""
    columns = columns or count
    rows = math.ceil(count / columns)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, **settings)
    axes = list(axes.flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count]


def line(axis, x, y, colour: str, dash: Dash = "-", label=None, **style) -> None:
    """One curve; the dash is a format ("--", "o-") or a pattern (0, (dash, gap, …))."""
    style |= {"color": colour, "label": label}
    if isinstance(dash, str):
        axis.plot(x, y, dash, **style)
    else:
        axis.plot(x, y, linestyle=dash, **style)


def wrapped(text: str, width: float) -> str:
    """The text in lines of at most `width` inches of a title's bold letters."""
    # A bold letter is about 0.6 em wide.
    letters = int(width * 72 / (0.6 * mpl.rcParams["figure.titlesize"]))
    return textwrap.fill(text, letters, break_on_hyphens=False)


def finding(figure: Figure, text: str) -> Figure:
    """Give the figure a title at its left edge: a sentence that states the finding.

    Where the figure has a legend above its panels, the title stands on top of it.
    """
    size = mpl.rcParams["figure.titlesize"]
    text = wrapped(text, figure.get_figwidth())
    if figure.legends:
        (legend, *_) = figure.legends
        legend.set_title(text, {"size": size, "weight": "bold"})
        legend.set_alignment("left")
        legend.set_loc("outside upper left")
    else:
        figure.suptitle(text, x=0.01, ha="left", linespacing=1.15)
    return figure


def say(figure: Figure, text: str) -> Artist:
    """Return the artist of a title that changes while the picture moves."""
    artist = figure.legends[0] if figure.legends else figure._suptitle
    title = figure.legends[0].get_title() if figure.legends else artist
    if title is None or not title.get_text():
        finding(figure, text)
    else:
        title.set_text(wrapped(text, figure.get_figwidth()))
    return artist or figure._suptitle


def caption(figure: Figure, text: str) -> Figure:
    """Add a small line at the lower right, below everything."""
    size = mpl.rcParams["xtick.labelsize"] - 1
    figure.supxlabel(text, x=0.995, ha="right", fontsize=size, color="#555555")
    return figure


def how_many(counts: Mapping[str, int]) -> str:
    """ "3 runs", or where these differ "10 runs (GRPO, SAPO), 5 runs (GMPO)"."""
    groups: dict[int, list[str]] = {}
    for label, n in counts.items():
        groups.setdefault(n, []).append(label)
    number = {n: f"{n} runs" if n > 1 else "1 run" for n in groups}
    if len(groups) == 1:
        each = 1 in groups and len(counts) > 1
        return "one run each" if each else "".join(number.values())
    told = ", ".join(f"{number[n]} ({', '.join(g)})" for n, g in groups.items())
    return told if len(told) < 60 else f"{min(groups)} to {max(groups)} runs"


def count_runs(axis, label: str | None, n: int, drawn: str, what: str = "run") -> None:
    """Note below the figure how many runs it shows, and what is `drawn` of them.

    It is called for every label, and one line covers them all. A single run has neither
    a median nor a range. `what` names the runs if they are something else; "" omits the
    line.
    """
    if not what or n == 0:
        return
    figure = axis.get_figure(root=True)
    told = figure.__dict__.setdefault("runs_told", {})
    counts = told.setdefault(drawn, {})
    counts[label or ""] = max(n, counts.get(label or "", 0))
    number = [how_many(counts) for counts in told.values()]
    plural = [drawn for drawn, counts in told.items() if max(counts.values()) > 1]
    text = "; ".join([*dict.fromkeys(number), *plural])
    caption(figure, re.sub(r"\brun(?=s?\b)", what, text))


def band(
    axis,
    runs: Runs,
    colour: str,
    label=None,
    dash: Dash = "-",
    x=None,
    what: str = "run",
    **style,
) -> None:
    """The median over runs by step, and a band from the lowest run to the highest.

    Steps at which no run has a value are passed over. `what` is what a run is called
    in the line below the figure.
    """
    table = summary(runs)
    x = steps(table[0]) if x is None else x
    known = [row for row in zip(x, *table) if row[1] == row[1]]
    x, middle, low, high = zip(*known) if known else ((),) * 4
    line(axis, x, middle, colour, dash, label, **style)
    axis.fill_between(x, low, high, color=colour, alpha=0.14, linewidth=0)
    count_runs(axis, label, len(runs), BAND, what)


def strands(
    axis, runs: Runs, colour: str, label=None, dash: Dash = "-", what: str = "run"
) -> None:
    """Every run as a thin line, the median over them as a thick one."""
    for run in runs:
        axis.plot(steps(run), run, color=colour, linewidth=0.8, alpha=0.5)
    middle, _, _ = summary(runs)
    line(axis, steps(middle), middle, colour, dash, label, linewidth=2.6)
    count_runs(axis, label, len(runs), STRANDS, what)


def dots(
    axis,
    rows: Mapping[str, Sequence[float]],
    colours: Iterable[str] = (),
    marks: Iterable[str] = "o",
    vertical: bool = False,
    what: str = "run",
) -> None:
    """One dot per run, one row per label (`vertical`: column), a bar at the median.

    Without `colours`, a method's rows have its colour.
    """
    colours = list(colours) or [colour_of(label, default=FREE[1]) for label in rows]
    styles = zip(cycle(colours), cycle(marks))
    for i, ((label, values), (face, mark)) in enumerate(zip(rows.items(), styles)):
        cloud = values, [i] * len(values)
        bar = [median(values)] * 2, [i - 0.3, i + 0.3]
        if vertical:
            cloud, bar = cloud[::-1], bar[::-1]
        axis.plot(*cloud, mark, color=face, alpha=0.75, markersize=6.5)
        axis.plot(*bar, color=BLACK, linewidth=2)
        count_runs(axis, label, len(values), DOTS, what)
    if vertical:
        axis.set_xticks(range(len(rows)), list(rows))
        axis.set_xlim(-0.5, len(rows) - 0.5)
    else:
        row_labels(axis, rows)


def row_labels(axis, labels: Iterable[str], **text) -> None:
    """One row per label, the first at the top."""
    labels = list(labels)
    axis.set_yticks(range(len(labels)), labels, **text)
    axis.set_ylim(len(labels) - 0.5, -0.5)


def curve_panel(
    axis, x, curves: Mapping[str, Sequence[float]], styles: Styles, legend=None, **axes
) -> None:
    """Curves by label, over `x` or (None) by step; `axes` goes to `axis.set`."""
    for (label, y), (colour, dash) in zip(curves.items(), cycle(styles)):
        over = steps(y) if x is None else x
        line(axis, over, y, colour, dash, label)
    axis.set(**axes)
    if legend:
        axis.legend(loc=legend)


def metric_panels(
    axes: Sequence,
    runs: Mapping[str, Sequence[History]],
    metrics: Sequence[tuple[str, str]],
    styles: Styles,
    ticks: int = 6,
) -> None:
    """One panel per (metric, title): its `band` by rollout, for every label's runs."""
    styles = list(styles)
    for axis, (metric, title) in zip(axes, metrics):
        for (label, histories), (colour, dash) in zip(runs.items(), cycle(styles)):
            having = [h[metric] for h in histories if metric in h.columns]
            if having:
                band(axis, having, colour, label, dash)
        axis.set_title(title)
        rollout_axis(axis, ticks)
        if metric in LOG_METRICS:
            axis.set_yscale("log")
            low, high = axis.get_ylim()
            subs = (1, 2, 5) if high < 50 * low else (1,)
            axis.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(NullFormatter())
        elif axis.dataLim.y0 >= 0:
            axis.set_ylim(bottom=0)


def hist(axis, values, edges: Sequence[float], colour: str, n: int) -> None:
    """A histogram, in shares of n; its end bins hold what is beyond them."""
    low = (edges[0] + edges[1]) / 2
    high = (edges[-1] + edges[-2]) / 2
    held = [min(max(float(x), low), high) for x in values]
    axis.hist(held, edges, weights=[1 / n] * len(held), color=colour)


def grouped_bars(axis, groups: Mapping[str, Sequence[float]], colours, ticks) -> None:
    """Bars side by side: one group per tick, one colour per label."""
    width = 0.8 / len(groups)
    for i, ((label, values), colour) in enumerate(zip(groups.items(), cycle(colours))):
        places = [k - 0.4 + (i + 0.5) * width for k in range(len(values))]
        axis.bar(places, values, 0.95 * width, color=colour, label=label)
    rule(axis, y=0, colour=BLACK, dash="-")
    axis.set_xticks(range(len(ticks)), ticks)


def stacked(axis, rows: Mapping[str, Mapping[str, float]], colours: Mapping) -> None:
    """One bar per row, cut into its parts."""
    for row, parts in enumerate(rows.values()):
        start = 0.0
        for part, share in parts.items():
            bar = {"height": 0.6, "left": start, "color": colours.get(part, GREY)}
            axis.barh(row, share, label=None if row else part, **bar)
            start += share
    row_labels(axis, rows)


def rule(axis, *, x=None, y=None, label=None, colour=GREY, dash=":", width=0.8) -> None:
    """A thin line across the panel at x, or at y."""
    draw, at = (axis.axvline, x) if y is None else (axis.axhline, y)
    draw(at, color=colour, linestyle=dash, linewidth=width, label=label)


def rollout_axis(axis, ticks: int = 6) -> None:
    """Rollouts below, at whole numbers."""
    axis.set_xlabel("rollout")
    axis.xaxis.set_major_locator(MaxNLocator(ticks, integer=True))


def plain_ticks(side, ticks: Sequence[float]) -> None:
    """Ticks at these values alone, as plain numbers; `side` is a log-scaled x or y."""
    side.set_major_locator(FixedLocator(ticks))
    side.set_major_formatter("{x:g}")
    side.set_minor_locator(NullLocator())


def box(axis, x, y, width, height, edge=INK, face=PAPER, **look) -> None:
    """A box with round corners, on a canvas whose unit is the inch."""
    shape = "round,pad=0,rounding_size=0.09"
    look = {"linewidth": 1.8, "zorder": 2} | look
    look |= {"facecolor": face, "edgecolor": edge}
    axis.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=shape, **look))


def arrow(axis, *points: tuple[float, float], colour=GREY, width=1.8) -> None:
    """A line through the points, with a head at the last."""
    axis.plot(*zip(*points), color=colour, linewidth=width, zorder=1)
    head = {"arrowstyle": "-|>", "color": colour, "linewidth": width}
    head |= {"shrinkA": 0, "shrinkB": 0, "mutation_scale": 13}
    axis.annotate("", xy=points[-1], xytext=points[-2], arrowprops=head, zorder=1)


def legend_outside(figure: Figure, axis, columns: int, side="upper") -> None:
    """One legend for all panels, above or below them, from what `axis` shows."""
    shown = axis.get_legend_handles_labels()
    figure.legend(*shown, loc=f"outside {side} center", ncols=columns)


def heading(figure: Figure, axis, title: str = "", columns: int = 0) -> Figure:
    """The figure with its finding above all panels, and a legend of what `axis` shows.

    One label needs no legend. `columns` are as many as fit, unless given.
    """
    handles, labels = axis.get_legend_handles_labels()
    if len(labels) > 1:
        letters = max(map(len, labels)) + 6  # what the line and the gap take
        fit = int(figure.get_figwidth() * 72 / (0.55 * 11 * letters))
        columns = columns or min(len(labels), max(1, fit))
        columns = -(-len(labels) // -(-len(labels) // columns))  # rows of one length
        figure.legend(handles, labels, loc="outside upper left", ncols=columns)
    if title:
        finding(figure, title)
    return figure
