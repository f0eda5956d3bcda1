"""Claims are judged by what rows say: tables made by hand, verdicts known."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from refimpl.lab import claims
from refimpl.lab.arms import ARMS, ON_DENSE
from refimpl.lab.claims import (
    CLAIMS,
    RATES,
    STUDIES,
    Breaking,
    Claim,
    Contrast,
    Mean,
    Swap,
    breaking_rates,
)
from refimpl.lab.grid import BASE, STALE, UPDATES, Cell, settings

A, B = Cell("SAPO 1.0"), Cell("GRPO")


def line(cell: Cell, start: int, seed: int = 0, **found) -> dict:
    own = {name: getattr(cell, name) for name in ("arm", "world", "updates", "rate")}
    own |= {"changed": tuple(sorted(cell.changed)), "answers": cell.answers}
    return {**own, "start": start, "seed": seed, **found}


def table(*lines: dict) -> pd.DataFrame:
    return pd.DataFrame(lines)


def two_arms(differences, outcome="reward", base=0.5) -> pd.DataFrame:
    """B at `base` everywhere, A above it by what is said for each start."""
    return table(
        *(line(A, s, **{outcome: base + d}) for s, d in enumerate(differences)),
        *(line(B, s, **{outcome: base}) for s in range(len(differences))),
    )


REWARD = Contrast("reward", A, B)


def claim(effect=REWARD, **changed) -> Claim:
    given = {"sign": 1, "smallest": 0.05, **changed}
    return Claim(99, "A beats B", "Does it?", "nobody", effect, "reward", **given)


@pytest.mark.parametrize(
    ("differences", "sign", "verdict"),
    [
        ([0.10, 0.12, 0.11, 0.09, 0.10], 1, "reproduced"),
        ([0.10, 0.12, 0.11, 0.09, 0.10], -1, "contradicted"),
        ([-0.10, -0.12, -0.11, -0.09, -0.10], -1, "reproduced"),
        ([-0.10, -0.12, -0.11, -0.09, -0.10], 1, "contradicted"),
        ([0.30, -0.20, 0.25, -0.10, 0.20], 1, "not seen"),  # the interval holds 0
        ([0.010, 0.012, 0.011, 0.009, 0.010], 1, "not seen"),  # real, and too small
        ([-0.010, -0.012, -0.011, -0.009, -0.010], 1, "contradicted"),
        ([0.3], 1, "not seen"),  # one warm start decides nothing
    ],
)
def test_the_verdict_follows_from_the_interval(differences, sign, verdict):
    made = claim(sign=sign).judge(two_arms(differences))
    assert made.verdict == verdict and made.why == ""
    assert made.estimate.effect == pytest.approx(sum(differences) / len(differences))


def test_without_its_premise_a_claim_is_not_testable_whatever_the_effect():
    found = two_arms([0.10, 0.12, 0.11, 0.09, 0.10])
    made = claim(premise=lambda table: "nothing moves").judge(found)
    assert (made.verdict, made.why) == ("not testable here", "nothing moves")


def test_pairs_share_start_and_seed_and_what_has_no_partner_is_left_out():
    found = table(
        line(A, 0, 0, reward=0.9),
        line(A, 0, 1, reward=0.4),
        line(A, 1, 0, reward=0.7),
        line(A, 2, 0, reward=0.1),  # no partner
        line(B, 0, 0, reward=0.5),
        line(B, 0, 1, reward=0.3),
        line(B, 1, 0, reward=0.9),
        line(Cell("GRPO", rate=4e-4), 1, 0, reward=0.0),  # another cell
        line(Cell("GRPO", changed=(("replay", "R2"),)), 1, 0, reward=0.0),
        line(Cell("GRPO", answers=True), 1, 0, reward=0.0),
    )
    pairs = Contrast("reward", A, B).pairs(found)
    assert pairs == {0: pytest.approx([0.4, 0.1]), 1: pytest.approx([-0.2])}


def test_a_quotient_is_read_in_doublings():
    found = two_arms([0, 0], "to_80", base=8.0)
    found.loc[found["arm"] == A.arm, "to_80"] = [16.0, 2.0]
    pairs = Contrast("to_80", A, B, "log2").pairs(found)
    assert pairs == {0: [1.0], 1: [-2.0]}


def test_a_swap_is_a_difference_of_differences():
    c, d = Cell("GSPO 3e-4"), Cell("DAPO")
    found = table(
        *(line(x, 0, reward=r) for x, r in ((A, 0.9), (B, 0.5), (c, 0.6), (d, 0.5))),
        *(line(x, 1, reward=r) for x, r in ((A, 0.5), (B, 0.5), (c, 0.5))),
    )
    swap = Swap(Contrast("reward", A, B), Contrast("reward", c, d))
    assert swap.pairs(found) == {0: pytest.approx([0.3])}  # start 1 lacks d
    assert swap.cells == (A, B, c, d)


def test_a_mean_is_compared_with_a_number_or_with_another_outcome():
    found = table(line(A, 0, x=0.8, y=0.1), line(A, 1, x=0.6, y=0.5))
    assert Mean("x", A, less=0.5).pairs(found) == {
        0: pytest.approx([0.3]),
        1: pytest.approx([0.1]),
    }
    assert Mean("x", A, less="y").pairs(found)[1] == pytest.approx([0.1])


def rates_of(rewards: list[list[float]], arm="GRPO", start=0) -> list[dict]:
    """Runs at 1e-4, 2e-4, … with K = 16: the rewards of each rate's seeds."""
    return [
        line(Cell(arm, rate, 16), start, seed, reward=reward)
        for rate, own in zip(RATES[16], rewards)
        for seed, reward in enumerate(own)
    ]


def test_a_method_breaks_where_its_reward_falls_through_a_half():
    """0.8 at 2e-4 and 0.2 at 4e-4: half-way, which is 2e-4 · √2."""
    found = table(*rates_of([[0.9], [0.7, 0.9], [0.1, 0.3], [0.0], [0.0]]))
    assert breaking_rates(found, "GRPO", 16) == {0: pytest.approx(2e-4 * 2**0.5)}
    # A dip further down does not count: the last fall does.
    found = table(*rates_of([[0.4], [0.9], [0.1], [0.2], [0.0]]))
    assert breaking_rates(found, "GRPO", 16)[0] == pytest.approx(2e-4 * 2**0.5)


def test_what_never_breaks_and_what_never_stands_have_the_ends_of_the_range():
    found = table(*rates_of([[0.9], [0.6], [0.8], [0.7], [0.6]]))
    assert breaking_rates(found, "GRPO", 16) == {0: 1.6e-3}
    found = table(*rates_of([[0.4], [0.1], [0.0], [0.0], [0.0]]))
    assert breaking_rates(found, "GRPO", 16) == {0: 5e-5}


def test_a_start_that_lacks_a_rate_says_nothing_yet():
    """Else a method that was not tried at high rates would never break."""
    whole, cut_off = [[0.9], [0.8], [0.2], [0.0], [0.0]], [[0.9], [0.8]]
    found = table(*rates_of(whole, start=0), *rates_of(cut_off, start=1))
    assert breaking_rates(found, "GRPO", 16).keys() == {0}


def test_breaking_is_compared_in_octaves():
    found = table(
        *rates_of([[0.9], [0.8], [0.2], [0.0], [0.0]], "GRPO"),
        *rates_of([[0.8], [0.2], [0.1], [0.0], [0.0]], "SAPO 1.0"),
    )
    assert Breaking("SAPO 1.0", "GRPO", 16).pairs(found) == {0: pytest.approx([-1])}
    assert len(Breaking("SAPO 1.0", "GRPO", 16).cells) == 2 * len(RATES[16])


def test_sixteen_claims_are_declared_and_every_cell_can_run():
    assert [c.number for c in CLAIMS] == list(range(1, 17))
    cells = {cell for named in (*CLAIMS, *STUDIES.values()) for cell in named.cells}
    for cell in cells:
        config = cell.config(seed=3)
        algorithm, _ = claims_arm(cell)
        config.check(algorithm)
        assert config.seed == 3 and config.learning_rate == cell.rate
        assert config.updates_per_rollout == cell.updates
        assert config.rollouts == BASE.rollouts == 30
    assert set(UPDATES) == {1, 4, 16}


def test_every_arm_can_run_in_a_world_that_has_what_it_needs():
    for arm in ARMS:
        cell = Cell(arm, world="sums" if arm in ON_DENSE else "moe")
        algorithm, _ = claims_arm(cell)
        cell.config(seed=0).check(algorithm)
    assert set(ARMS) - set(ON_DENSE) == {
        *("GRPO + R2", "GRPO + R3", "GRPO + R3 + TIS"),
        *("RSPO", "RSPO, gradient through γ"),
    }


def test_the_stale_settings_are_what_the_cells_run():
    """A cell adds its arm's own settings, a seed, and the drift that is recorded."""
    for rate in STALE.values():
        own = Cell("GRPO", rate).config(seed=3)
        assert own == replace(settings(rate), seed=3, measure_drift=True)
        assert (own.learning_rate, own.updates_per_rollout) == (rate, 16)
    assert settings(3e-4, updates=4).updates_per_rollout == 4


def claims_arm(cell: Cell):
    return ARMS[cell.arm].build()


def test_no_effect_of_the_stale_study_takes_the_name_of_another():
    """14 on the dense model, 2 × 3 for bad tokens, 7 × 2 and 4 × 2 on a MoE."""
    assert len(STUDIES["stale"].effects) == 14 + 6 + 14 + 8
    assert len(set(STUDIES["stale"].effects.values())) == 14 + 6 + 14 + 8


def test_every_claim_says_what_it_would_take():
    for one in CLAIMS:
        assert one.smallest > 0 and one.sign in (1, -1) and one.unit
        assert one.question.endswith("?") and "(" in one.source
        assert one.seeds >= 2
        assert one.effect.cells[0] in one.cells


def test_routing_replay_is_judged_only_where_routing_moves():
    seven = CLAIMS[6]
    grpo, replay = seven.effect.control, seven.effect.arm
    for change, verdict in ((0.04, "not testable here"), (0.12, "reproduced")):
        found = table(
            *(line(grpo, s, reward=0.5, expert_change=change) for s in range(5)),
            *(
                line(replay, s, reward=0.6 + s / 500, expert_change=change)
                for s in range(5)
            ),
        )
        made = seven.judge(found)
        assert made.verdict == verdict
        assert ("4% of the experts" in made.why) is (change == 0.04)


def test_a_claim_without_rows_says_so():
    with pytest.raises(ValueError, match="at least one difference"):
        claim().judge(two_arms([0.1])[:1])
    assert math.isnan(claim().judge(two_arms([0.1])).estimate.low)
    assert claims.BROKEN == 0.5


def test_pass_at_64_is_judged_only_where_it_has_room():
    sixteen = CLAIMS[15]
    for before, verdict in ((0.99, "not testable here"), (0.8, "reproduced")):
        runs = {"pass@64 before": before, "pass@64 gained": 0.0}
        found = table(
            *(
                line(sixteen.cells[0], s, **runs, **{"maj@8 gained": 0.3 + s / 100})
                for s in range(5)
            )
        )
        made = sixteen.judge(found)
        assert made.verdict == verdict
        assert ("no room to rise" in made.why) is (before == 0.99)


@pytest.mark.parametrize("number", [2, 3, 6, 9])
def test_the_way_to_a_goal_is_judged_only_where_half_of_the_runs_get_there(number):
    one = CLAIMS[number - 1]
    arm, control = one.effect.cells
    name = one.effect.outcome
    goal = name.removeprefix("samples_").removeprefix("to_")

    def found(there: int) -> pd.DataFrame:
        """So many of ten runs get there, those of the arm twice as fast."""
        lines = []
        for n in range(10):
            cell, took = (arm, 4.0) if n % 2 else (control, 8.0 + n / 50)
            took = took if n < there else 31.0
            own = {f"to_{goal}": took, "rollouts": 30, name: took}
            lines.append(line(cell, n // 2, **own))
        return table(*lines)

    assert one.judge(found(10)).verdict == "reproduced"
    assert one.judge(found(5)).verdict != "not testable here"
    made = one.judge(found(4))
    assert made.verdict == "not testable here"
    assert made.why == f"only 40% of the runs reach a reward of 0.{goal.rstrip('0')}"
