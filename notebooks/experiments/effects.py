"""What a claim is made of: effects, read from a table of runs, and their verdicts.

A verdict follows from an effect's interval over warm starts and the smallest size that
matters, by one rule that does not know which side is claimed (`verdict`):

    reproduced           the whole interval lies beyond that size, as it is claimed
    contradicted         beyond it, the other way
    none that matters    the whole interval lies within ± that size
    undecided            anything else; `detectable` is what these runs could have seen
    premise absent       what the claim is about does not happen here
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd

from experiments.grid import OLD, Cell, World
from experiments.statistics import Estimate, estimate

RATES = {
    updates: tuple(1e-4 * 2 ** (first + k) for k in range(5))
    for updates, first in ((1, 2), (4, 1), (16, 0))
}
"""The learning rates at which methods are tried, by K: the fewer updates, the higher.
In a pilot GRPO earned 0.94 at 2e-4 with K = 16, and 0.74 at 8e-4 with K = 4."""
SGD_RATES = tuple(0.0125 * 2**k for k in range(5))
"""Those of SGD, K = 16: in a pilot GRPO broke at 0.1."""
STARTS, SEEDS = len(OLD), 4
"""Warm starts, and seeds from each, of every cell unless a claim says otherwise."""


class Contrast(NamedTuple):
    """An outcome of `arm` against `control`, paired by warm start and seed.

    `scale`: "difference"; or "log2", of the quotient: 1 is twice as much. A pair with
    a 0 has no quotient and is left out.
    """

    outcome: str
    arm: Cell
    control: Cell
    scale: str = "difference"

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.arm, self.control)

    def pairs(self, table: pd.DataFrame) -> dict[int, list[float]]:
        """What each pair says, by warm start."""
        a, b = (of_cell(table, cell)[self.outcome] for cell in self.cells)
        both = pd.concat([a.rename("a"), b.rename("b")], axis=1).dropna()
        if self.scale == "log2":
            both = both[(both > 0).all(axis=1)]
            each = (both["a"] / both["b"]).map(math.log2)
        else:
            each = both["a"] - both["b"]
        return _by_start(each)


class Swap(NamedTuple):
    """A contrast against another: (arm − control) − (arm′ − control′)."""

    one: Contrast
    other: Contrast

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.one.cells + self.other.cells

    def pairs(self, table: pd.DataFrame) -> dict[int, list[float]]:
        """By warm start, means of seeds: the two contrasts need not pair up."""
        a, b = (_means(part.pairs(table)) for part in self)
        return {start: [a[start] - b[start]] for start in a.keys() & b.keys()}


class Mean(NamedTuple):
    """An outcome of one cell, less what it is compared with."""

    outcome: str
    cell: Cell
    less: str | float = 0.0
    """another outcome of the same run, or a number"""

    @property
    def cells(self) -> tuple[Cell, ...]:
        return (self.cell,)

    def pairs(self, table: pd.DataFrame) -> dict[int, list[float]]:
        runs = of_cell(table, self.cell)
        less = runs[self.less] if isinstance(self.less, str) else self.less
        return _by_start((runs[self.outcome] - less).dropna())


class Best(NamedTuple):
    """An outcome of an arm against a control, each at its own best rate.

    Of a cell per rate, the one whose mean over all starts is largest: chosen once, on
    the data that it is judged by.
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


class Average(NamedTuple):
    """The mean of several contrasts, by warm start; of starts that have them all."""

    parts: tuple[Contrast, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for part in self.parts for cell in part.cells)

    def pairs(self, table: pd.DataFrame) -> dict[int, list[float]]:
        means = [_means(part.pairs(table)) for part in self.parts]
        both = set.intersection(*map(set, means))
        return {
            start: [math.fsum(m[start] for m in means) / len(means)] for start in both
        }


BROKEN = 0.5
"""Mean reward of the last ten rollouts below which a method is called broken."""


class Breaking(NamedTuple):
    """How much higher a learning rate `arm` stands than `control`, in octaves (log2).

    For each warm start: from the highest rate down, the first at which the mean over
    seeds of `reward` is BROKEN or more; between it and the next, by straight line in
    log2 of the rate. A method that stands everywhere gets the highest rate, one that
    stands nowhere half the lowest.

    `rates`: others than those of the central figure. `along`: an outcome that is read
    in place of the rate, as `step_early`: how far the weights had moved.
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
    """An arm at every rate, as the central figure shows it, or at these."""
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
    """The rate at which `arm` breaks, by warm start, or what stands `along` it; see
    `Breaking`.

    Only of starts that were tried at every rate.
    """
    found: dict[int, list[tuple[float, float]]] = {}
    cells = sweep(arm, updates, world, optimizer, rates)
    for rate, cell in cells.items():
        runs = of_cell(table, cell).assign(rate=rate)
        where = _means(_by_start(runs[along]))
        for start, mean in _means(_by_start(runs["reward"])).items():
            found.setdefault(start, []).append((where[start], mean))
    whole = {start: x for start, x in found.items() if len(x) == len(cells)}
    return {start: _crossing(points) for start, points in whole.items()}


def _crossing(points: list[tuple[float, float]]) -> float:
    """The rate where reward falls through BROKEN for the last time."""
    if points[-1][1] >= BROKEN:
        return points[-1][0]
    for (rate, reward), (above, worse) in reversed([*itertools.pairwise(points)]):
        if reward >= BROKEN:
            share = (reward - BROKEN) / (reward - worse)
            return rate * (above / rate) ** share
    return points[0][0] / 2


Effect = Contrast | Swap | Average | Mean | Best | Breaking


@dataclass(frozen=True)
class Claim:
    """One claim and what decides it.

    `sign`: +1 if the effect is claimed to be positive. `smallest`: the smallest effect
    that would matter, on the effect's own scale, > 0. `premise`: from the table, "" if
    the claim can be tested, else what is missing. `others`: effects that are shown
    beside the primary one, and decide nothing. `decides`: where it is undecided, what
    would decide it, and what that costs.
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
    others: dict[str, Effect] = field(default_factory=dict)
    seeds: int = SEEDS
    starts: Sequence[int] = OLD
    decides: str = ""

    @property
    def cells(self) -> list[Cell]:
        """Every cell that is needed, once."""
        parts = (self.effect, *self.others.values())
        return list(dict.fromkeys(cell for part in parts for cell in part.cells))

    def judge(self, table: pd.DataFrame, noise: float = 0.0) -> "Verdict":
        """What the rows say; `noise` as in `decide`. Raises `UserError` if there are
        none for it."""
        table = self.own(table)
        made = estimate(self.effect.pairs(table))
        missing = self.premise(table) if self.premise else ""
        word = self.decide(made, noise, absent=bool(missing))
        return Verdict(self, made, word, missing or self.decides * (word == UNDECIDED))

    def own(self, table: pd.DataFrame) -> pd.DataFrame:
        """The runs from the claim's own starts."""
        return table[table["start"].isin(self.starts)]

    def decide(self, made: Estimate, noise: float = 0.0, absent: bool = False) -> str:
        """The verdict of an effect like this. A size matters only if it exceeds `noise`
        too, what two names of one algorithm may differ by in the claim's own cells."""
        return verdict(made, max(self.smallest, noise), self.sign, absent)


UNDECIDED = "undecided"
VERDICTS = (
    *("reproduced", "contradicted", "none that matters", UNDECIDED),
    "premise absent",
)


def verdict(
    made: Estimate, smallest: float, sign: int = 1, absent: bool = False
) -> str:
    """One of `VERDICTS`: where an effect's interval lies to ± the smallest that
    matters. `sign`: +1 if the effect is claimed to be positive."""
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
    """What became of a claim; `why` its premise is absent, or what would decide it."""

    claim: Claim
    estimate: Estimate
    verdict: str
    why: str


def of_cell(table: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    """The runs of a cell, by (start, weights, seed).

    Start 1 of two stores may be two policies, so pairs have the same weights; old runs
    of which nobody knows them ("lost") are paired with each other alone.
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
    by_start: dict[int, list[float]] = {}
    for (start, *_), value in values.sort_index().items():
        by_start.setdefault(int(start), []).append(float(value))
    return by_start


def _means(by_start: dict[int, list[float]]) -> dict[int, float]:
    return {start: sum(values) / len(values) for start, values in by_start.items()}


@dataclass(frozen=True)
class Study:
    """Runs that no single claim asks for, and what they are for."""

    title: str
    effects: dict[str, Effect]
    seeds: int = 2
    starts: Sequence[int] = OLD

    @property
    def cells(self) -> list[Cell]:
        """Every cell that is needed, once."""
        every = (cell for effect in self.effects.values() for cell in effect.cells)
        return list(dict.fromkeys(every))
