"""Claims are judged by what rows say: tables and intervals by hand, verdicts known."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from experiments import effects
from experiments.arms import ARMS, ON_DENSE
from experiments.claims import CLAIMS, SECOND, STUDIES
from experiments.effects import RATES, Best, Breaking, Claim, Contrast, Mean, Sum
from experiments.finding import FINDING
from experiments.gpu import gates
from experiments.gpu.gates import PAIRS
from experiments.grid import RUNS, Cell
from experiments.statistics import Estimate, benjamini_hochberg, estimate, holms
from refimpl import UserError
from refimpl.options import check_fit

A, B, C, D = (Cell(arm) for arm in ("SAPO 1.0", "GRPO", "GSPO 3e-4", "DAPO"))
C = replace(C, changed=(("whiten", True), ("beta", 0.1)))  # in any order
REWARD = Contrast("reward", A, B)


def line(cell: Cell, start: int, seed: int = 0, **outcomes) -> dict:
    named = {name: getattr(cell, name) for name in ("arm", "world", "updates", "rate")}
    named |= {"changed": tuple(sorted(cell.changed)), "answers": cell.answers}
    return {**named, "start": start, "weights": "w", "seed": seed, **outcomes}


def lines(cell: Cell, name: str, values, **more) -> list[dict]:
    """A run from each start, with these values of an outcome."""
    return [line(cell, s, **more, **{name: x}) for s, x in enumerate(values)]


def table(name: str, given: dict[Cell, tuple]) -> pd.DataFrame:
    return pd.DataFrame(x for cell, of in given.items() for x in lines(cell, name, of))


def two_arms(differences) -> pd.DataFrame:
    """B at a reward of 0.5 everywhere, A above it by what is given for each start."""
    above = [0.5 + d for d in differences]
    return table("reward", {A: above, B: [0.5] * len(differences)})


def claim(sign=1, **changed) -> Claim:
    given = {"sign": sign, "smallest": 0.05, **changed}
    return Claim(99, "A beats B", "Does it?", "nobody", REWARD, "reward", **given)


CLEAR = (0.10, 0.12, 0.11, 0.09, 0.10)


@pytest.mark.parametrize(
    ("differences", "given", "verdict", "why"),
    [
        (CLEAR, {}, "reproduced", ""),
        ([0.3], {}, "undecided", "twenty starts"),  # one warm start decides nothing
        (CLEAR, {"premise": lambda _: "nothing moves"}, "premise absent", "nothing m"),
        ((*CLEAR, -0.9, -0.8), {"starts": range(5)}, "reproduced", ""),  # its own
        ((*CLEAR, -0.9, -0.8), {"starts": range(7)}, "undecided", "twenty starts"),
    ],
)
def test_the_verdict_follows_from_the_interval(differences, given, verdict, why):
    one = claim(decides="twenty starts", **given)
    made = one.judge(two_arms(differences))
    assert (made.verdict, made.why[:9]) == (verdict, why[:9])
    own = differences[: len(one.starts)]
    assert made.estimate.effect == pytest.approx(sum(own) / len(own))
    assert math.isnan(made.estimate.low) is (len(own) == 1)


INTERVALS = [  # low, high, where 1 matters: the verdict if + is claimed, and if − is
    (1.1, 2.0, "reproduced", "contradicted"),
    (0.1, 0.9, "none that matters", "none that matters"),
    (0.5, 1.5, "undecided", "undecided"),  # real; whether it matters is not known
    (1.0, 2.0, "undecided", "undecided"),  # what just matters may be just too small
    (-1.0, 0.5, "undecided", "undecided"),
    (math.nan, math.nan, "undecided", "undecided"),  # one start
]


@pytest.mark.parametrize(("low", "high", "plus", "minus"), INTERVALS)
def test_one_rule_for_both_sides(low, high, plus, minus):
    made = Estimate((low + high) / 2, low, high, 5, 10, 0.5, 0.01)
    found = [effects.verdict(made, 1.0, sign) for sign in (1, -1)]
    assert found == [plus, minus]
    assert effects.verdict(made, 1.0, absent=True) == "premise absent"
    assert {plus, minus} <= set(effects.VERDICTS)
    # The larger of size and noise counts, not their sum.
    clear = Estimate(0.05, 0.04, 0.06, 5, 10, 0.01, 0.01)
    assert replace(claim(), smallest=0.03).decide(clear, noise=0.02) == "reproduced"
    # A control of nothing that reaches as far as 2.5 leaves none of this to matter.
    noisy = replace(claim(), smallest=1.0).decide(made, noise=2.5)
    assert noisy == ("undecided" if math.isnan(low) else "none that matters")


def test_pairs_share_start_and_seed_and_what_has_no_partner_is_left_out():
    """One start number may be two policies, which are no pair. Those that nobody knows
    are paired with each other alone."""
    others = {"rate": 4e-4}, {"changed": (("replay", "R2"),)}, {"answers": True}
    runs = [
        *(line(A, 0, seed, reward=r) for seed, r in enumerate((0.9, 0.4))),
        *(line(B, 0, seed, reward=r) for seed, r in enumerate((0.5, 0.3))),
        *(line(A, 1, reward=0.7), line(B, 1, reward=0.9), line(A, 2, reward=0.1)),
        *(line(Cell("GRPO", **other), 1, reward=0.0) for other in others),
        line(A, 3, reward=0.9) | {"weights": "a5fa"},
        line(B, 3, reward=0.5) | {"weights": "lost"},
        line(A, 4, reward=0.9) | {"weights": "lost"},
        line(B, 4, reward=0.6) | {"weights": "lost"},
    ]
    expected = {0: [0.4, 0.1], 1: [-0.2], 4: [0.3]}
    pairs = REWARD.pairs(pd.DataFrame(runs))
    assert pairs == {start: pytest.approx(x) for start, x in expected.items()}


def test_each_kind_of_effect_by_hand():
    """A quotient is read in doublings; a swap is a difference of differences."""
    given = {A: (16.0, 0.5, 0.0), B: (8.0, 2.0, 8.0), C: (6.0, 5.0), D: (5.0,)}
    runs = table("n", given)
    doublings = Contrast("n", A, B, "log2").pairs(runs)
    assert doublings == {0: [1.0], 1: [-2.0]}  # of 0 there is no quotient
    swap = Sum((Contrast("n", A, B), Contrast("n", C, D)), (1, -1))
    assert swap.pairs(runs) == {0: [7.0]} and swap.cells == (A, B, C, D)
    assert Mean("n", B, less=0.5).pairs(runs) == {0: [7.5], 1: [1.5], 2: [7.5]}
    runs["m"] = 3.0
    assert Mean("n", C, less="m").pairs(runs) == {0: [3.0], 1: [2.0]}


def test_each_arm_is_taken_at_its_own_best_rate():
    """A at the second rate, 0.7 and 0.9 from two starts; B at the first: 0.6, 0.5."""
    a, b = ([replace(x, rate=r) for r in (1e-4, 2e-4)] for x in (A, B))
    given = {a[0]: (0.95, 0.1), a[1]: (0.7, 0.9), b[0]: (0.6, 0.5), b[1]: (0.2, 0.6)}
    runs = table("reward", given)
    best = Best("reward", tuple(a), tuple(b))
    assert best.pairs(runs) == {0: [pytest.approx(0.1)], 1: [pytest.approx(0.4)]}
    assert best.cells == (*a, *b)


def rates_of(*rewards: list[float], arm="GRPO", start=0, steps=(1.0,) * 5):
    """Runs at 1e-4, 2e-4, … with K = 16: the rewards of each rate's seeds, and how far
    the weights had moved."""
    return [
        line(Cell(arm, rate, 16), start, seed, reward=reward, step_early=step)
        for rate, of_rate, step in zip(RATES[16], rewards, steps)
        for seed, reward in enumerate(of_rate)
    ]


@pytest.mark.parametrize(
    ("rewards", "rate"),
    [
        # 0.9 at 2e-4 and 0.4 at 4e-4: four fifths of the octave
        (([0.9], [0.8, 1.0], [0.3, 0.5], [0.0], [0.0]), 2e-4 * 2**0.8),
        # a dip further down does not count: the last fall does
        (([0.4], [0.9], [0.1], [0.2], [0.0]), 2e-4 * 2**0.5),
        (([0.9], [0.6], [0.8], [0.4], [0.5]), 1.6e-3),  # it stands at the last
        (([0.4], [0.1], [0.0], [0.0], [0.0]), 5e-5),  # it never stands
    ],
)
def test_a_method_breaks_where_its_reward_falls_through_a_half(rewards, rate):
    """A start that lacks a rate says nothing yet: else what was not tried at high
    rates would never break."""
    runs = pd.DataFrame([*rates_of(*rewards), *rates_of([0.9], [0.8], start=1)])
    assert effects.breaking_rates(runs, "GRPO", 16) == {0: pytest.approx(rate)}


def test_breaking_is_compared_in_octaves_of_the_rate_or_of_another_outcome():
    """GRPO breaks half-way between 2e-4 and 4e-4, SAPO half-way between 1e-4 and 2e-4.
    There the one had moved by 0.2, and the other by 0.4: an octave further."""
    late, early = ([0.9], [0.8], [0.2], [0.0], [0.0]), ([0.8], [0.2], *[[0.1]] * 3)
    runs = pd.DataFrame(
        rates_of(*late, steps=(0.1, 0.1, 0.4, 0.4, 0.4))
        + rates_of(*early, arm="SAPO 1.0", steps=(0.2, 0.8, 0.8, 0.8, 0.8))
    )
    effect = Breaking("SAPO 1.0", "GRPO", 16)
    assert effect.pairs(runs) == {0: pytest.approx([-1])}
    along = effect._replace(along="step_early")
    assert effects.breaking_rates(runs, *along[1:]) == {0: pytest.approx(0.2)}
    assert along.pairs(runs) == {0: pytest.approx([1])}


def test_seventeen_claims_are_declared_and_every_cell_can_run():
    assert [c.number for c in CLAIMS] == list(range(1, 18))
    declared = (*CLAIMS, *STUDIES.values(), *FINDING)
    cells = {cell for named in declared for cell in named.cells}
    cells |= {Cell(arm, world="sums" if arm in ON_DENSE else "moe") for arm in ARMS}
    for cell in cells:
        config, _ = check_fit(RUNS.config(cell.job(10, 3)), ARMS[cell.arm].build()[0])
        assert config.seed == 3 and config.learning_rate == cell.rate
        assert config.updates_per_rollout == cell.updates and config.rollouts == 30
    assert set(ARMS) - set(ON_DENSE) == {
        *("GRPO + R2", "GRPO + R3", "GRPO + R3 + TIS"),
        *("RSPO", "RSPO, gradient through γ"),
    }


@pytest.mark.parametrize("number", ["2b", 3, "6c", 9])
def test_the_way_to_a_goal_is_judged_only_where_half_of_the_runs_get_there(number):
    (one,) = (claim for claim in (*CLAIMS, *SECOND) if claim.number == number)
    (arm, control), name = one.effect.cells, one.effect.outcome
    goal = name.rpartition("_")[2]

    def runs(there: int) -> pd.DataFrame:
        """So many of ten get there, those of the arm four times as fast; the first of
        all in its last rollout."""
        made = []
        for n in range(10):
            cell, took = (arm, 2.0) if n % 2 else (control, 8.0 + n / 50)
            took = 31.0 if n >= there else took if n else 30.0
            known = {f"to_{goal}": took, "rollouts": 30, name: took}
            made.append(line(cell, n // 2, **known))
        return pd.DataFrame(made)

    assert one.judge(runs(10)).verdict == "reproduced"
    assert one.judge(runs(5)).verdict != "premise absent"
    made = one.judge(runs(4))
    assert made.verdict == "premise absent"
    assert made.why == f"only 40% of the runs reach a reward of 0.{goal.rstrip('0')}"


def test_an_estimate_by_hand():
    """Means 1, 2, 3: d̄ = 2, s = 1, error 1/√3, t(0.975, 2) = 4.302653."""
    made = estimate({0: [0.5, 1.5], 1: [2.0], 2: [1.0, 3.0, 5.0]})
    half = 4.302653 / math.sqrt(3)
    assert made.effect == pytest.approx(2)
    assert (made.low, made.high) == pytest.approx((2 - half, 2 + half))
    assert (made.starts, made.runs) == (3, 6)
    assert made.p == pytest.approx(0.0741799)  # 2 · P(T₂ > 2√3)
    # that is told from 0 four times in five
    assert made.detectable == pytest.approx((4.302653 + 1.060660) / math.sqrt(3))


def test_seeds_of_one_start_are_not_independent_observations():
    """Twenty runs from one start are one start, and leave no interval."""
    made = estimate({0: [0.1 * n for n in range(20)]})
    assert (made.starts, made.runs) == (1, 20)
    assert not made.known and math.isnan(made.p)
    # Nor does repeating every run make the interval narrower.
    rows = {0: [0.0, 0.2], 1: [0.3], 2: [0.1, 0.5, 0.9]}
    again = {start: values * 10 for start, values in rows.items()}
    assert estimate(again)[:3] == pytest.approx(estimate(rows)[:3])


def test_starts_that_agree_to_the_digit_leave_no_doubt_and_none_no_effect():
    assert estimate({0: [1.0], 1: [1.0]})[:3] == (1.0, 1.0, 1.0)
    assert estimate({0: [0.0], 1: [0.0]}).p == 1 and estimate({0: [1], 1: [1]}).p == 0
    for nothing in ({}, {0: []}):
        with pytest.raises(UserError, match="at least one difference"):
            estimate(nothing)


def test_corrections_for_many_tests_by_hand():
    """Sorted .005 .01 .03 .04: Holm takes them 4, 3, 2 and 1 times, never falling;
    Benjamini–Hochberg 4/1, 4/2, 4/3 and 4/4 times, never rising from the last."""
    p = [0.01, 0.04, 0.03, 0.005]
    assert holms(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert benjamini_hochberg(p) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert holms([]) == benjamini_hochberg([]) == []
    assert holms([0.9, 0.8]) == [1.0, 1.0]


def test_a_seed_counts_with_all_of_its_runs():
    names = ["arm", "task", "updates", "rate", "seed"]
    one, two = PAIRS["hard"]
    cells = {
        (arm, "sums", 16, rate, seed): (arm == one) * (0.1 + 0.1 * seed)
        for arm in (one, two)
        for rate in gates.RATES[16]
        for seed in range(3)
    }
    table = pd.Series(cells).rename_axis(names)
    assert gates.compared(table, one, two, "sums", 16).effect == pytest.approx(0.2)
    del cells[two, "sums", 16, gates.RATES[16][0], 2]
    fewer = gates.compared(pd.Series(cells).rename_axis(names), one, two, "sums", 16)
    assert (fewer.starts, fewer.effect) == (2, pytest.approx(0.15))
