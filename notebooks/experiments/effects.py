"""Claims: effects that are computed from a table of runs, and their verdicts.

A verdict follows from an effect's interval over warm starts and the smallest size that
matters, by one rule that treats both directions alike (`verdict`):

    reproduced           the whole interval lies beyond that size, as it is claimed
    contradicted         the whole interval lies beyond it in the other direction
    none that matters    the whole interval lies within ± that size
    undecided            anything else; these runs could have shown `detectable`
    premise absent       the situation that the claim is about does not occur here
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from experiments.grid import OLD, Cell, World
from experiments.statistics import Estimate, estimate

RATES = {
    updates: tuple(1e-4 * 2 ** (first + k) for k in range(5))
    for updates, first in ((1, 2), (4, 1), (16, 0))
}
"""The learning rates at which methods are tried, by K. With fewer updates they are
higher. In a pilot GRPO earned 0.94 at 2e-4 with K = 16, and 0.74 at 8e-4 with K = 4."""
SGD_RATES = tuple(0.0125 * 2**k for k in range(5))
"""The learning rates of SGD with K = 16. In a pilot GRPO broke at 0.1."""
STARTS, SEEDS = len(OLD), 4
"""Warm starts of every cell, and seeds of each, unless a claim says otherwise.

Until November 2026 every cell first got two seeds, and a claim got more only if half
its interval was wider than half the smallest effect that matters. Claims that got no
more say so (`seeds=2`)."""


class Contrast(NamedTuple):
    """An outcome of `arm` against `control`, paired by warm start and seed.

    `scale` is "difference", or "log2" for the logarithm of the quotient, where 1 is
    twice as much. A pair with a 0 has no quotient and is left out.
    """

    outcome: str
    arm: Cell
    control: Cell
    scale: str = "difference"

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.arm, self.control)

    def pairs(self, table: pd.DataFrame) -> dict[int, list[float]]:
        """Return the effect of each pair, by warm start."""
        a, b = (of_cell(table, cell)[self.outcome] for cell in self.cells)
        both = pd.concat([a.rename("a"), b.rename("b")], axis=1).dropna()
        if self.scale == "log2":
            both = both[(both > 0).all(axis=1)]
            each = (both["a"] / both["b"]).map(math.log2)
        else:
            each = both["a"] - both["b"]
        return _by_start(each)


class Sum(NamedTuple):
    """A weighted sum of contrasts by warm start, for starts that have all of them.

    With weights 1 and −1 it is a difference of differences.
    """

    parts: tuple[Contrast, ...]
    weights: tuple[float, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for part in self.parts for cell in part.cells)

    def pairs(self, table: pd.DataFrame) -> dict[int, list[float]]:
        """Return sums of means over seeds, since the contrasts need not pair up."""
        means = [_means(part.pairs(table)) for part in self.parts]
        both = set.intersection(*map(set, means))
        weighted = list(zip(self.weights, means))
        return {s: [math.fsum(w * m[s] for w, m in weighted)] for s in both}


class Mean(NamedTuple):
    """An outcome of one cell minus a number or another outcome."""

    outcome: str
    cell: Cell
    less: str | float = 0.0
    """another outcome of the same run, or a number, which is subtracted"""

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.cell,)

    def pairs(self, table: pd.DataFrame) -> dict[int, list[float]]:
        runs = of_cell(table, self.cell)
        less = runs[self.less] if isinstance(self.less, str) else self.less
        return _by_start((runs[self.outcome] - less).dropna())


class Best(NamedTuple):
    """An outcome of an arm against a control, each at its own best rate.

    There is one cell per rate. The cell with the largest mean over all starts is chosen
    once, on the same data that it is judged by.
    """

    outcome: str
    arm: tuple[Cell, ...]
    control: tuple[Cell, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.arm + self.control

    def pairs(self, table: pd.DataFrame) -> dict[int, list[float]]:
        both = []
        for cells in (self.arm, self.control):
            tried = [of_cell(table, cell)[self.outcome] for cell in cells]
            both.append(max(tried, key=lambda values: values.mean()))
        return _by_start((both[0] - both[1]).dropna())


BROKEN = 0.5
"""Mean reward of the last ten rollouts below which a method is called broken."""


class Breaking(NamedTuple):
    """How many octaves higher a learning rate `arm` survives than `control` does.

    For each warm start, take the highest rate at which the mean over seeds of `reward`
    is BROKEN or more, and interpolate to the next rate on a straight line in log2 of
    the rate. A method that survives at every rate gets the highest one, a method that
    survives at none gets half the lowest.

    `rates`: rates other than those of the central figure. `along`: an outcome to use in
    place of the rate, such as `step_early`, which is how far the weights had moved.
    """

    arm: str
    control: str
    updates: int
    world: World = "sums"
    optimizer: str = "adamw"
    rates: tuple[float, ...] = ()
    along: str = "rate"

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(
            cell
            for arm in (self.arm, self.control)
            for cell in sweep(arm, *self[2:6]).values()
        )

    def pairs(self, table: pd.DataFrame) -> dict[int, list[float]]:
        a, b = (
            breaking_rates(table, arm, *self[2:]) for arm in (self.arm, self.control)
        )
        return {
            start: [math.log2(a[start] / b[start])] for start in a.keys() & b.keys()
        }


def sweep(
    arm: str,
    updates: int,
    world: World = "sums",
    optimizer: str = "adamw",
    rates: tuple[float, ...] = (),
) -> dict[float, Cell]:
    """Return the cells of an arm at these rates, or at those of the central figure."""
    sgd = optimizer == "sgd"
    changed = (("optimizer", optimizer),) if sgd else ()
    rates = rates or (SGD_RATES if sgd else RATES[updates])
    return {rate: Cell(arm, rate, updates, world, changed) for rate in rates}


def breaking_rates(
    table: pd.DataFrame,
    arm: str,
    updates: int,
    world: World = "sums",
    optimizer: str = "adamw",
    rates: tuple[float, ...] = (),
    along: str = "rate",
) -> dict[int, float]:
    """Return, by warm start, the rate at which an arm breaks; see `Breaking`.

    With `along`, the value of that column instead. Starts that were not tried at every
    rate are left out.
    """
    each = []
    for rate, cell in sweep(arm, updates, world, optimizer, rates).items():
        runs = of_cell(table, cell).assign(rate=rate)
        each.append(runs.groupby("start")[[along, "reward"]].mean())
    whole = set.intersection(*(set(means.index) for means in each))
    return {
        start: _crossing([tuple(means.loc[start]) for means in each]) for start in whole
    }


def _crossing(points: list[tuple[float, float]]) -> float:
    """Return the rate above which reward stays below BROKEN."""
    if points[-1][1] >= BROKEN:
        return points[-1][0]
    for (rate, reward), (above, worse) in reversed([*itertools.pairwise(points)]):
        if reward >= BROKEN:
            share = (reward - BROKEN) / (reward - worse)
            return rate * (above / rate) ** share
    return points[0][0] / 2


Effect = Contrast | Sum | Mean | Best | Breaking


@dataclass(frozen=True)
class Claim:
    """A claim, and the effect that decides it.

    `sign`: +1 if the effect is claimed to be positive. `smallest`: the smallest effect
    that would matter, on the effect's own scale, > 0. `premise`: a function of the
    table that returns "" if the claim can be tested, or else what is missing. `also`:
    cells that chapters show next to it, and that decide nothing. `decides`: the runs
    that would decide an undecided claim, and their cost.
    """

    number: int | str
    title: str
    question: str
    source: str
    effect: Effect
    unit: str
    smallest: float
    sign: int = 1
    premise: Callable[[pd.DataFrame], str] | None = None
    also: tuple[Cell, ...] = ()
    seeds: int = SEEDS
    starts: Sequence[int] = OLD
    decides: str = ""

    @property
    def cells(self) -> list[Cell]:
        """All cells that are needed, each once."""
        return list(dict.fromkeys((*self.effect.cells, *self.also)))

    def judge(self, table: pd.DataFrame, noise: float = 0.0) -> "Verdict":
        """Judge the claim by a table of runs; `noise` as in `decide`.

        Raises `UserError` if the table has no runs of it.
        """
        table = self.own(table)
        made = estimate(self.effect.pairs(table))
        missing = self.premise(table) if self.premise else ""
        word = self.decide(made, noise, absent=bool(missing))
        return Verdict(self, made, word, missing or self.decides * (word == UNDECIDED))

    def own(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the runs from the starts of this claim."""
        return table[table["start"].isin(self.starts)]

    def decide(self, made: Estimate, noise: float = 0.0, absent: bool = False) -> str:
        """Return the verdict on an estimate.

        A size matters only if it also exceeds `noise`, the difference between two names
        of one algorithm in the claim's own cells.
        """
        return verdict(made, max(self.smallest, noise), self.sign, absent)


UNDECIDED = "undecided"
VERDICTS = (
    *("reproduced", "contradicted", "none that matters", UNDECIDED),
    "premise absent",
)


def verdict(
    made: Estimate, smallest: float, sign: int = 1, absent: bool = False
) -> str:
    """Judge an effect by its interval and the smallest size that matters.

    `sign`: +1 if the effect is claimed to be positive. Returns one of `VERDICTS`.
    """
    if absent:
        return "premise absent"
    if not made.known:
        return UNDECIDED
    low, high = sorted((sign * made.low, sign * made.high))
    if low > smallest:
        return "reproduced"
    if high < -smallest:
        return "contradicted"
    if -smallest < low and high < smallest:
        return "none that matters"
    return UNDECIDED


class Verdict(NamedTuple):
    """The verdict on a claim. `why`: the absent premise, or what would decide it."""

    claim: Claim
    estimate: Estimate
    verdict: str
    why: str


def of_cell(table: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    """Return the runs of a cell, by (start, weights, seed).

    Start 1 of two stores may be two policies, so a pair needs the same weights. Old
    runs whose weights are unknown ("lost") are paired only with each other.
    """
    chosen = (
        (table["arm"] == cell.arm)
        & (table["world"] == cell.world)
        & (table["updates"] == cell.updates)
        & (table["rate"] == cell.rate)
        & table["changed"].map(lambda c: c == tuple(sorted(cell.changed)))
        & (table["answers"] == cell.answers)
    )
    return table[chosen].set_index(["start", "weights", "seed"])


def _by_start(values: "pd.Series[float]") -> dict[int, list[float]]:
    """Group values by start, each start's in the order of its seeds."""
    grouped = values.sort_index().groupby("start")
    return {start: one.to_list() for start, one in grouped}


def _means(by_start: dict[int, list[float]]) -> dict[int, float]:
    return {start: sum(values) / len(values) for start, values in by_start.items()}


@dataclass(frozen=True)
class Study:
    """Runs that belong to no single claim, and the question that they answer."""

    title: str
    cells: tuple[Cell, ...]
    seeds: int = 2
    starts: Sequence[int] = OLD
