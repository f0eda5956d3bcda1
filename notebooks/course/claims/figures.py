"""Figures of chapter 12: clusters, the ledger, breaking rates, the audit."""

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from course.kit import explorer, stakes
from course.kit.claims import measured
from course.kit.plots import primitives as draw
from course.kit.plots.style import FREE, GREY, INK, PAPER, RIGHT, WRONG, looks_of
from experiments.claims import PAPERS, Claim, Contrast
from experiments.grid import OLD
from experiments.statistics import Estimate, estimate

MARKS = {
    "reproduced": ("o", RIGHT),
    "contradicted": ("X", WRONG),
    "none that matters": ("s", GREY),
    "undecided": ("^", PAPER),
    "premise absent": ("D", PAPER),
}
"""Mark and colour by verdict, in the order of the ledger's blocks."""
EDGE = 20
"""The ledger's axis ends at so many smallest effects; a bar beyond it is cut off."""
NAMES = {
    "GRPO (0.67, 1.49)": "GRPO, GMPO's width",
    "GSPO 0.03": "GSPO, ε 0.03",
    "CISPO 5": "CISPO",
    "SAPO 1.0": "SAPO, τ = 1",
    "SAPO 8.8": "SAPO, τ = 8.8",
    "one-sided 8.8": "one-sided, τ = 8.8",
    "two-sided clip": "clip without min",
}
"""What the figures call an arm, where its own name is too short."""
BY_START = "dots: warm starts, bar: 95 % interval of the mean"


def clusters(by_start: Mapping[int, Sequence[float]], what: str, title: str) -> Figure:
    """Paired differences by warm start, and two intervals of their mean.

    One counts every pair as an observation, the other every warm start.
    """
    figure, axis = plt.subplots(figsize=(8, 3.6))
    for start, values in by_start.items():
        axis.plot([start] * len(values), values, "o", color=FREE[1], alpha=0.8)
        axis.plot(
            [start - 0.25, start + 0.25], [sum(values) / len(values)] * 2, color=INK
        )
    every = [value for values in by_start.values() for value in values]
    n = len(by_start)
    for place, made, colour in (
        (n + 0.4, estimate({i: [v] for i, v in enumerate(every)}), GREY),
        (n + 1.4, estimate(by_start), INK),
    ):
        axis.plot([place] * 2, [made.low, made.high], color=colour, linewidth=3)
        axis.plot(place, made.effect, "o", color=colour, markersize=8)
    draw.rule(axis, y=0, colour=INK, dash="-", width=1)
    named = [f"start {start}" for start in by_start]
    ends = [f"{len(every)} pairs,\ncounted each", f"{n} warm\nstarts"]
    axis.set_xticks([*by_start, n + 0.4, n + 1.4], [*named, *ends])
    axis.set_ylabel(what)
    draw.finding(figure, title)
    return draw.caption(
        figure, "dots: pairs of runs, lines: their means, bars: 95 % intervals"
    )


def ledger(lines: Sequence[Mapping[str, str]], title: str) -> Figure:
    """Effect and interval of every claim, in units of the smallest that matters.

    To the right is what is claimed; a block for each verdict. `lines` are the ledger's.
    """
    figure, axis = plt.subplots(figsize=(8, 7.8))
    axis.axvspan(1, EDGE, color=FREE[3], alpha=0.18, linewidth=0)
    by_number = {claim.number: claim for claim in PAPERS}
    verdicts = list(MARKS)
    labels, row = [], 0.0
    for verdict in verdicts:
        block = [line for line in lines if line["verdict"] == verdict]
        colour = _edge(verdict)
        row += 0.9
        named = f"{verdict}: {len(block)}"
        look = {"color": colour, "weight": "bold", "ha": "right", "va": "center"}
        axis.text(-1.25 * EDGE, row, named, **look)
        for line in block:
            row += 1
            claim = by_number[int(line["claim"])]
            labels.append((row, f"{claim.title}  {claim.number}"))
            unit = claim.sign * claim.smallest
            points = [float(line[k] or "nan") / unit for k in ("low", "effect", "high")]
            bar(axis, row, points, verdict)
            effect, _, unit_name, *_ = measured(line)
            said = f"{effect} {UNITS.get(unit_name, unit_name.partition(',')[0])}"
            axis.text(EDGE * 1.6, row, said, va="center", size=10)
    draw.rule(axis, x=0, colour=INK, dash="-", width=1)
    axis.set_xscale("symlog", linthresh=1, linscale=0.7)
    axis.set(xlim=(-EDGE, EDGE), ylim=(row + 0.7, 0.3))
    axis.set_xticks([-10, -1, 0, 1, 10], ["−10", "−1", "0", "1", "10"])
    axis.set_yticks([at for at, _ in labels], [label for _, label in labels], size=10.5)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("← the other way      as claimed →")
    draw.heading(figure, axis, title)
    return draw.caption(
        figure,
        "in units of the smallest effect that matters, logarithmic beyond ±1;"
        " bars: 95 % intervals, five or ten warm starts",
    )


UNITS = {
    "rollouts to 0.95": "rollouts",
    "rollouts to 0.8": "rollouts",
    "answers to 0.95": "answers",
    "octaves of the rate": "octaves",
    "q99 − q01, nats": "range",
    "share of responses": "of responses",
    "share of problems": "of problems",
    "the KL": "KL",
}
"""What the ledger's figure calls a unit, where its own name is too long."""


def _edge(verdict: str) -> str:
    _, colour = MARKS[verdict]
    return GREY if colour == PAPER else colour


def bar(axis, row: float, points: Sequence[float], verdict: str) -> None:
    """An effect between the ends of its interval, whichever way they lie."""
    low, effect, high = points
    mark, fill = MARKS[verdict]
    edge = _edge(verdict)
    axis.plot([low, high], [row, row], color=edge, linewidth=2.6)
    at = max(-EDGE, min(EDGE, effect))
    axis.plot(at, row, mark, mfc=fill, mec=edge, mew=1.6, markersize=8, clip_on=False)


def _rate_axis(axis, rates: Sequence[float]) -> None:
    draw.plain_ticks(axis.xaxis, rates)
    axis.set_xticks(rates, [f"{rate * 1e4:g}" for rate in rates])
    axis.set_xlabel("rate, $10^{-4}$")


def breaking(
    panels: Mapping[str, Mapping[str, Mapping[int, float]]],
    rates: Mapping[str, Sequence[float]],
    title: str,
) -> Figure:
    """The rate at which each method breaks, by warm start: a panel per K or world.

    `rates[panel]` are those that were tried; what stands at all of them is drawn at the
    highest. A line marks the mean of the first method. All panels have one axis.
    """
    methods = list(
        dict.fromkeys(arm for by_start in panels.values() for arm in by_start)
    )
    size = (8, 0.4 * len(methods) + 1.9)
    figure, axes = draw.panel_grid(len(panels), size, sharey=True)
    looks = dict(zip(methods, looks_of(methods)))
    tables = panels.values()
    seen = [
        r for table in tables for by_start in table.values() for r in by_start.values()
    ]
    low, high = min(seen) / 1.25, max(seen) * 1.25
    for axis, (panel, by_method) in zip(axes, panels.items()):
        axis.set(xscale="log", title=panel, xlim=(low, high))
        for row, arm in enumerate(methods):
            if arm not in by_method:
                middle = math.sqrt(low * high)
                axis.text(middle, row, "not run", color=GREY, ha="center", va="center")
                continue
            by_start = by_method[arm]
            made = [2**x for x in interval_of_logs(by_start)]
            _interval(axis, row, by_start.values(), made, looks[arm][0])
            if row == 0:
                draw.rule(axis, x=made[0], dash="--")
        if high > rates[panel][-1]:
            draw.rule(axis, x=rates[panel][-1], dash="-")
        _rate_axis(axis, [r * 1e-4 for r in _TICKS if low < r * 1e-4 < high])
    draw.row_labels(axes[0], [NAMES.get(arm, arm) for arm in methods])
    draw.finding(figure, title)
    told = f"{BY_START}; dashed: {methods[0]}'s mean, solid: highest rate tried"
    return draw.caption(figure, told)


_TICKS = (1, 2, 4, 8, 16, 32)


def _interval(axis, row: int, dots: Collection[float], made, colour) -> None:
    """A row: the dots, and above them effect, low and high."""
    effect, low, high = made
    axis.plot(dots, [row + 0.2] * len(dots), "o", color=colour, ms=4.5, alpha=0.65)
    axis.plot([low, high], [row - 0.12] * 2, color=colour, linewidth=3)
    axis.plot(effect, row - 0.12, "o", color=colour, ms=8)


def interval_of_logs(rates: Mapping[int, float]) -> tuple[float, float, float]:
    """The mean of log2 of the rates, one per warm start, and its 95 % interval."""
    made = estimate({start: [math.log2(rate)] for start, rate in rates.items()})
    return made.effect, made.low, made.high


def invented(panels: Mapping[str, Sequence[Sequence[float]]], title: str) -> Figure:
    """Draw studies without an effect, sorted: those whose interval excludes 0 are red.

    `panels[label]` holds a row of observations for each study.
    """
    figure, axes = draw.panel_grid(len(panels), (8, 3.6), sharey=True)
    for axis, (label, studies) in zip(axes, panels.items()):
        made = [
            estimate({i: [float(x)] for i, x in enumerate(study)}) for study in studies
        ]
        made.sort(key=lambda one: one.effect)
        off = [not one.low <= 0 <= one.high for one in made]
        for row, (one, excludes) in enumerate(zip(made, off)):
            colour = WRONG if excludes else FREE[1]
            axis.plot([row, row], [one.low, one.high], color=colour, linewidth=1)
        draw.rule(axis, y=0, colour=INK, dash="-", width=1)
        axis.set(title=f"{label}: {sum(off)} of {len(off)}", xlabel="study")
    axes[0].set(ylabel="95 % interval", ylim=(-4, 4))
    draw.finding(figure, title)
    return draw.caption(figure, "red: the interval excludes 0")


AUDITED = [
    claim
    for claim in PAPERS
    if isinstance(claim.effect, Contrast) and claim.starts == OLD
]
"""Claims that compare two cells from the first five starts, so that another outcome can
be asked of them."""
DECLARED = "as declared"
OUTCOMES = {
    DECLARED: DECLARED,
    "reward": "reward",
    "accuracy": "accuracy",
    "entropy": "entropy",
    "tokens of an answer": "length",
    "rollouts to 0.8": "to_80",
}
"""What may be asked, and the column of the table."""


def unit(claim) -> str:
    """The unit of the claim's effect, which may be the logarithm of a ratio."""
    of = claim.unit.removeprefix("log2 of ")
    return claim.unit if of == claim.unit else f"{of} (log₂ of the ratio)"


def audit_explorer(table: pd.DataFrame) -> explorer.Explorer:
    """A claim's interval for the reader's outcome, seeds, warm starts, threshold."""
    runs = {
        claim.number: table[table["arm"].isin({c.arm for c in claim.effect.cells})]
        for claim in AUDITED
    }
    figure, axis = plt.subplots(figsize=(draw.NARROW, 4.2))
    (band,) = axis.plot([0, 0], [len(OLD)] * 2, color=INK, linewidth=4)
    (middle,) = axis.plot(0, len(OLD), "o", color=INK, ms=9)
    (dots,) = axis.plot([], [], "o", color=FREE[1], alpha=0.8)
    (limit,) = axis.plot([0, 0], [-1, 6], "--", color=GREY)
    (marks,) = axis.plot([], [], "|", color=INK, ms=15, mew=2)
    draw.rule(axis, x=0, colour=INK, dash="-", width=1)
    draw.row_labels(axis, [*(f"start {start}" for start in OLD), "their mean"])
    axis.set(xlim=(-1, 1), xlabel=" ", xticks=TICKS, xticklabels=[" "] * len(TICKS))
    axis.grid(axis="y", visible=False)
    draw.finding(figure, "claim and verdict")
    axis.set_title(" ", loc="left", size=11)
    draw.caption(figure, "dots: pairs of runs; bar: 95 % interval; dashed: threshold")
    # The panel's range follows the data, so its numbers are texts that move.
    below = {"transform": axis.get_xaxis_transform(), "ha": "center", "va": "top"}
    ticks = [axis.text(x, -0.03, "", size=11, **below) for x in TICKS]
    what = axis.text(0, -0.11, "", **below)
    numbers = axis.text(0, 1.02, "", size=11, transform=axis.transAxes)

    @functools.cache  # the threshold asks for nothing new
    def found(number: int, outcome: str, starts: int, seeds: int):
        claim = next(c for c in AUDITED if c.number == number)
        made, by_start = audited(claim, runs[number], outcome, starts, seeds)
        pairs = [value for values in by_start.values() for value in values]
        ends = (*pairs, made.low, made.high, 2 * claim.smallest)
        far = max(abs(x) for x in ends if math.isfinite(x))
        return claim, made, by_start, rounded_up(1.05 * far)

    def estimated(number: int, outcome: str, starts: int, seeds: int) -> list:
        _, made, by_start, far = found(number, outcome, starts, seeds)
        rows = [start for start, values in by_start.items() for _ in values]
        pairs = [value / far for values in by_start.values() for value in values]
        dots.set_data(pairs, rows)
        means = [sum(values) / len(values) / far for values in by_start.values()]
        marks.set_data(means, [*by_start])
        middle.set_xdata([made.effect / far])
        band.set_xdata([made.low / far, made.high / far])
        for x, text in zip(TICKS, ticks):
            text.set_text(f"{x * far:g}".replace("-", "−"))
        told = f"{made.effect:+.3g}  [{made.low:+.3g}, {made.high:+.3g}]"
        numbers.set_text(f"{told}, {made.runs} pairs, {made.starts} starts")
        return [band, middle, dots, marks, *ticks, numbers]

    def asked(number: int, outcome: str) -> list:
        claim = next(c for c in AUDITED if c.number == number)
        shown = next(name for name, column in OUTCOMES.items() if column == outcome)
        what.set_text(unit(claim) if outcome == DECLARED else shown)
        return [what]

    def judged(
        number: int, outcome: str, starts: int, seeds: int, threshold: float
    ) -> list:
        claim, made, _, far = found(number, outcome, starts, seeds)
        at = claim.sign * threshold * claim.smallest / far
        limit.set_xdata([at, at])
        said = _said(claim, made, outcome, threshold)
        title = draw.say(figure, f"{claim.title}: {said}")
        lines = draw.wrapped(title.get_text(), 0.85 * draw.NARROW)  # capitals are wide
        if "\n" not in lines:  # two lines, which the layout has room for
            lines = f"{claim.title}:\n{said}"
        title.set_text(lines)
        return [limit, title]

    named = [(f"{c.number} · {c.title}", c.number) for c in AUDITED]
    most = int(table["seed"].max()) + 1
    controls = {
        "number": explorer.choice("claim", named, AUDITED[0].number),
        "outcome": explorer.choice("outcome", [*OUTCOMES.items()], DECLARED),
        "threshold": explorer.slider("threshold, smallest effects", 1.0, 0.0, 2.0, 0.5),
        "starts": explorer.slider("warm starts", 5, 2, 5, 1),
        "seeds": explorer.slider("seeds of each, at most", most, 1, most, 1),
    }
    return explorer.Explorer(
        figure,
        [estimated, asked, judged],
        controls,
        stakes="Every number here comes from stored runs: from those that you keep.",
        prediction=stakes.Prediction(
            "Take two warm starts in place of five. What happens to the interval?",
            ("it gets wider", "it gets narrower", "nothing"),
            "it gets wider",
            "Runs from one start resemble each other, so two starts amount to two "
            "numbers.",
        ),
        name="12_audit",
    )


TICKS = (-0.8, -0.4, 0, 0.4, 0.8)
"""Of half the panel's width."""


def rounded_up(x: float) -> float:
    """1.25, 2.5 or 5 of some power of ten: `TICKS` of it are short numbers."""
    power = 10 ** math.floor(math.log10(x))
    return next(m * power for m in (1.25, 2.5, 5, 12.5) if m * power >= x)


def audited(
    claim: Claim, table: pd.DataFrame, outcome: str, starts: int, seeds: int
) -> tuple[Estimate, dict[int, list[float]]]:
    """The claim's estimate with another outcome (as a difference) or fewer runs."""
    effect = claim.effect
    if outcome != DECLARED:
        effect = effect._replace(outcome=outcome, scale="difference")
    chosen = table[(table["start"] < starts) & (table["seed"] < seeds)]
    by_start = effect.pairs(chosen)
    return estimate(by_start), by_start


def _said(claim: Claim, made: Estimate, outcome: str, threshold: float) -> str:
    """The verdict, where there is one."""
    if outcome != DECLARED:
        return "an outcome that was not declared"
    return replace(claim, smallest=threshold * claim.smallest).decide(made)
