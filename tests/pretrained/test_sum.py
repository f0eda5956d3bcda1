"""Several rewards as one: a weighted sum, its parts recorded."""

import numpy as np
import pytest

from refimpl import UserError
from refimpl.checkpoint import identity
from refimpl.pretrained.rewards import Sum
from refimpl.rewards import score, scored
from tests.worlds import small_run

PROMPTS, COMPLETIONS = ["1+2=", "3+4="], ["#3", "#8"]


def closeness(completions, answer, **_):
    return [
        1 / (1 + abs(int(c[1:]) - a)) for c, a in zip(completions, answer, strict=True)
    ]


def longness(completions, **_):
    return [float(len(c)) for c in completions]


def test_a_sum_by_hand():
    """Weights go by the order that was given, not by the names; each part is called
    once, and a dictionary that changes afterwards moves nothing."""
    calls = []

    def size(completions, **_):
        calls.append(len(completions))
        return longness(completions)

    parts = {"size": size, "near": closeness}
    both, plain = Sum(parts, weights=(-0.25, 2)), Sum(parts)
    parts["near"] = longness
    totals, paid = scored(both, PROMPTS, COMPLETIONS, {"answer": [3, 7]})
    assert totals == [2 * 1 - 0.5, 2 * 0.5 - 0.5]
    assert paid == {"near": [1.0, 0.5], "size": [2.0, 2.0]}
    assert calls == [2]
    assert plain(PROMPTS, COMPLETIONS, answer=[3, 7]) == [3.0, 2.5]
    for wrong in ([closeness],), ({},), (parts, (1,)), (parts, {"near": 1, "size": 2}):
        with pytest.raises(UserError, match=r"(nents|weights) must be|a Sum needs"):
            Sum(*wrong)
    assert Sum(parts, [1, np.float64(0.5)]).weights == (1.0, 0.5)


def test_components_of_another_function_are_recorded_and_pay_nothing():
    own = lambda **given: longness(**given)  # noqa: E731
    own.components = {"near": closeness}
    totals, paid = scored(own, PROMPTS, COMPLETIONS, {"answer": [3, 7]})
    assert (totals, paid) == ([2.0, 2.0], {"near": [1.0, 0.5]})


def test_a_sum_is_told_from_another_in_any_process():
    """A checkpoint must know it again: no address in memory, but the weights."""
    one = Sum({"near": closeness, "size": longness}, (1, 0.5))
    parts = f"1·near={__name__}.closeness + 0.5·size={__name__}.longness"
    assert identity(one) == f"Sum({parts})"
    assert identity(one) != identity(Sum(one.components, (1, 0.25)))


def half(completions, **_):
    """Pays every other answer; to the rest it does not apply."""
    return [2.0 if n % 2 else None for n in range(len(completions))]


def test_none_leaves_an_answer_out_of_a_component_and_its_mean():
    both = Sum({"half": half, "long": longness}, (3.0, 1.0))
    assert both(PROMPTS, COMPLETIONS) == [2.0, 2.0 + 6.0]
    row = small_run(rollouts=1, reward=both).rows[0]
    assert row["rewards/half/mean"] == 2.0
    assert row["reward"] == pytest.approx(3.0 + row["rewards/long/mean"], abs=1e-5)
    with pytest.raises(UserError, match="returned None for completion 0: one of half"):
        Sum({"half": half})(PROMPTS, COMPLETIONS)
    with pytest.raises(UserError, match="must return 2 numbers"):
        score(half, PROMPTS, COMPLETIONS, {})
    with pytest.raises(UserError, match="gdpo compares every reward component"):
        small_run(rollouts=1, reward=both, advantage="gdpo")


def too_long(completion_ids, **_):
    """What TRL's `get_soft_overlong_punishment(12, 4)` pays."""
    return [min(0.0, max(-1.0, (8 - len(ids)) / 4)) for ids in completion_ids]


def test_a_reward_gets_each_answers_tokens_and_may_log():
    seen = {}

    def reward(prompts, completions, completion_ids, log_metric, **_):
        seen["ids"] = completion_ids
        log_metric("mine", 1.0)
        log_metric("mine", float(len(completions)))
        return [float(len(ids)) for ids in completion_ids]

    history = small_run(rollouts=2, reward=reward)
    lengths = [sum(map(len, seen["ids"])) / 16]
    assert history["completions/mean_length"][1:] == lengths == history["reward"][1:]
    assert history["mine"] == [8.5, 8.5]
    assert small_run(rollouts=1, reward=Sum({"long": too_long})).rows[0]["reward"] <= 0


@pytest.mark.parametrize(
    "name", "reward kl sampling/rounds habit/careful loss step step_time".split()
)
def test_a_reward_may_not_log_under_a_name_that_the_history_has(name):
    def reward(completions, log_metric, **_):
        log_metric(name, 1.0)
        return longness(completions)

    with pytest.raises(UserError, match=f"history has a column '{name}' already"):
        small_run(rollouts=1, beta=0.1, reward=reward)
