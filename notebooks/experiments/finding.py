"""The finding, asked again at equal movement. Declared before the first of its runs.

**The finding.** With sixteen updates per rollout (Adam, 0.1 M parameters), a gate that
also closes on the way back breaks at a lower learning rate than one that closes only
where a token moves on.

**Three objections.** (1) It is only a margin, and disappears at each gate's best rate.
(2) The rate is no common scale, since a gate that removes returning gradients lets
Adam's K steps line up, so that the weights move further at the same rate. (3) It does
not explain SAPO as published, whose gate (τ = 1) hardly closes.

**The runs.** K = 16, the ten shipped starts, one seed of each, half-octave rates from
2e-4 to 11e-4, six arms. Then the same, without GRPO, at *GRPO's pace*: after every
rollout the rate is set so that ‖Δθ‖ is that of GRPO's run from the same start, with the
same random numbers, at the same nominal rate, in that rollout (`drift.Pace`). `STAGES`
is the order of the runs.

**Outcomes.** The mean reward over all 30 rollouts (`area`), averaged over the six
rates, where a difference of 0.03 matters; and the breaking point, in octaves of the
rate and of ‖Δθ‖ in rollouts 2 to 5, where a quarter of an octave matters. A positive
effect means that one side is better.

**The stopping rule.** Every cell gets its ten runs, and none is added after a look.
Until all are there, an effect is judged on the starts that have every run of it, and
the verdict says so.

**What would refute it.** At GRPO's pace both areas, hard and soft, lie inside ± 0.03
(*none that matters*), or one of them lies below. Then the cost comes not from
sidedness, but from Adam's step, which returning gradients shorten. If both are
*reproduced*, it comes from sidedness itself. Objection 3 stands unless `one-sided 1.0`
against `SAPO 1.0` is reproduced as well.

**Asked afterwards** (`WHY`, `FOUR`), and declared before their own first run: five of
the ten starts, one seed, `area`.

*Which part of the second side is harmful?* Four gates at τ = 8.8 lie between SAPO's and
one side, at the same six rates. Each is compared with both: how much it gains over SAPO
8.8, and how much it falls short of one side.

- A random gate lets the same weight through on either side. If it falls short by
  nothing that matters, the amount counts, and not which tokens.
- The reversed gate is open only for tokens that move on. If it gains, openness helps
  on either side.
- One side for shared tokens alone. If it falls short by nothing that matters, the drag
  on shared tokens is the whole cause. If it gains nothing that matters, it is no cause.
- Bad answers at weight 0. If they fall short by nothing that matters, the way back
  matters because of the push from bad answers.

*Does it happen with four updates?* Both pairs with K = 4, at six half-octave rates
around the rate at which GRPO broke there in older runs (11e-4). It does not if the
verdict is *none that matters*.
"""

from experiments.arms import AT_PACE
from experiments.effects import Best, Breaking, Claim, Contrast, Effect, Study, Sum
from experiments.grid import TEN, Cell

HALF_OCTAVES = (2e-4, 2.8e-4, 4e-4, 5.7e-4, 8e-4, 1.1e-3)
TRIED = {16: HALF_OCTAVES, 4: (4e-4, 5.7e-4, 8e-4, 1.1e-3, 1.6e-3, 2.3e-3)}
"""The learning rates, by K."""
PAIRS = {
    "hard": ("GRPO", "two-sided clip"),
    "soft, τ = 8.8": ("one-sided 8.8", "SAPO 8.8"),
    "soft, τ = 1": ("one-sided 1.0", "SAPO 1.0"),
}
"""Pairs of gates, with the one-sided gate first."""
BETWEEN = {
    "a random gate of the same weight": "SAPO 8.8, coin of one side's weight",
    "the reversed gate": "mirrored 8.8",
    "one side for shared tokens alone": "one-sided 8.8, shared tokens",
    "no bad answers": "SAPO 8.8, bad at 0",
}
"""Gates between SAPO 8.8 and one-sided 8.8."""
AREA, OCTAVES = 0.03, 0.25
"""The smallest effects that matter."""


def _cells(arm: str, updates: int = 16) -> tuple[Cell, ...]:
    return tuple(Cell(arm, rate, updates) for rate in TRIED[updates])


def _breaking(
    pair: tuple[str, str], along: str = "rate", updates: int = 16
) -> Breaking:
    return Breaking(*pair, updates, rates=TRIED[updates], along=along)


def _area(pair: tuple[str, str], updates: int = 16) -> Sum:
    """Return the mean difference over the rates."""
    both = zip(*(_cells(arm, updates) for arm in pair))
    contrasts = tuple(Contrast("area", *cells) for cells in both)
    return Sum(contrasts, (1 / len(contrasts),) * len(contrasts))


def _at_pace(pair: tuple[str, str]) -> tuple[str, str]:
    """Return the pair at GRPO's pace. GRPO itself keeps its own."""
    one, two = pair
    return AT_PACE.get(one, one), AT_PACE.get(two, two)


def _asked_at_own(pair: str, updates: int = 16) -> dict[str, Effect]:
    """Return the effects of a pair of gates at their own pace, by name."""
    own = PAIRS[pair]
    one, two = (_cells(arm, updates) for arm in own)
    return {
        "octaves of the rate": _breaking(own, updates=updates),
        "area": _area(own, updates),
        "area, each at its best rate": Best("area", one, two),
    }


def _asked(pair: str) -> dict[str, Effect]:
    """Return a pair's effects at its own pace, per movement, and at GRPO's pace."""
    own, paced = PAIRS[pair], _at_pace(PAIRS[pair])
    return _asked_at_own(pair) | {
        "octaves of ‖Δθ‖": _breaking(own, "step_early"),
        "area at GRPO's pace": _area(paced),
        "octaves at GRPO's pace": _breaking(paced),
    }


def _claim(name: str, effect: Effect, starts: range = TEN) -> Claim:
    """Make a claim whose `name` consists of its subject and its outcome."""
    about, asked = name.split(": ")
    return Claim(
        name,
        "One side keeps a skill where two lose it",
        f"{asked} of {about}?",
        "chapter 10b",
        effect,
        asked,
        smallest=OCTAVES if asked.startswith("octaves") else AREA,
        seeds=1,
        starts=starts,
    )


FIRST, THEN = TEN[:5], TEN[5:]
EIGHT, ONE = ("hard", "soft, τ = 8.8"), ("soft, τ = 1",)
ONE_SIDE, TWO_SIDES = PAIRS["soft, τ = 8.8"]
FINDING = tuple(
    _claim(f"{pair}: {asked}", effect)
    for pair in PAIRS
    for asked, effect in _asked(pair).items()
)
WHY: dict[str, Effect] = {
    f"{name}: {asked}": _area(pair)
    for name, gate in BETWEEN.items()
    for asked, pair in {
        "over two sides": (gate, TWO_SIDES),
        "short of one": (ONE_SIDE, gate),
    }.items()
}
FOUR = {
    f"K = 4, {pair}: {asked}": effect
    for pair in EIGHT
    for asked, effect in _asked_at_own(pair, 4).items()
}
AFTERWARDS = tuple(_claim(name, effect, FIRST) for name, effect in (WHY | FOUR).items())


def _stage(title: str, starts: range, *pairs: str, paced: bool = False) -> Study:
    arms = [_at_pace(PAIRS[pair]) if paced else PAIRS[pair] for pair in pairs]
    cells = tuple(cell for pair in arms for arm in pair for cell in _cells(arm))
    return Study(title, cells, seeds=1, starts=starts)


STAGES = {
    "pace-1": _stage("Four gates at their own pace", FIRST, *EIGHT),
    "pace-2": _stage("Three of them at GRPO's", FIRST, *EIGHT, paced=True),
    "pace-3": _stage("τ as published, at its own pace", FIRST, *ONE),
    "pace-4": _stage("τ as published, at GRPO's", FIRST, *ONE, paced=True),
    "pace-5": _stage("Four gates, five more starts", THEN, *EIGHT),
    "pace-6": _stage("At GRPO's, five more starts", THEN, *EIGHT, paced=True),
    "pace-7": _stage("τ as published, five more starts", THEN, *ONE),
    "pace-8": _stage("At GRPO's, five more starts", THEN, *ONE, paced=True),
}
"""The runs. Their order was changed twice, but the cells were not. After the first
stage and a part of the second, τ = 1 was run before five more starts of the others. Of
the stages then left, `pace-7` was run first, because only its pair was undecided."""
LATER = {
    name: Study(
        title,
        tuple(cell for effect in effects.values() for cell in effect.cells),
        seeds=1,
        starts=FIRST,
    )
    for name, title, effects in (
        ("why", "Which part of the second side is harmful?", WHY),
        ("four", "Does it happen with four updates?", FOUR),
    )
}
