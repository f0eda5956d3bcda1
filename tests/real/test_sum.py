"""Several rewards as one: a weighted sum, its parts recorded."""

import numpy as np
import pytest
import torch

from refimpl.real.rewards import Sum
from refimpl.rewards import identity, scored
from refimpl.tasks import Arithmetic
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
    for kind in (np.array, torch.tensor, list):  # which become plain numbers
        assert Sum(parts, kind([1, 0.5])).weights == (1.0, 0.5)


def test_components_of_another_function_are_recorded_and_pay_nothing():
    own = lambda **given: longness(**given)  # noqa: E731
    own.components = {"near": closeness}
    totals, paid = scored(own, PROMPTS, COMPLETIONS, {"answer": [3, 7]})
    assert (totals, paid) == ([2.0, 2.0], {"near": [1.0, 0.5]})


def test_a_sum_is_told_from_another_in_any_process():
    """A checkpoint must know it again: no address in memory, but the weights."""
    one = Sum({"near": closeness, "size": longness}, (1, 0.5))
    name = f"{__name__}."
    assert identity(one) == f"Sum(1·near={name}closeness + 0.5·size={name}longness)"
    assert identity(one) != identity(Sum(one.components, (1, 0.25)))


def test_a_run_logs_the_components_apart():
    """Without their weights, over all that was sampled; the reward is their sum."""
    parts = {"correct": Arithmetic.reward, "long": longness}
    row = small_run(rollouts=1, reward=Sum(parts, (1.0, 0.5))).rows[0]
    correct, long = row["rewards/correct/mean"], row["rewards/long/mean"]
    assert row["reward"] == pytest.approx(correct + 0.5 * long, abs=1e-5)
    assert 0 < correct < 1 < long


@pytest.mark.filterwarnings("ignore::refimpl.tasks.TaskWarning")
def test_components_of_all_rounds_are_counted():
    """Dynamic sampling draws again; the means are over what was drawn in all."""
    both = Sum({"correct": Arithmetic.reward, "none": lambda **_: [0.0] * 8})
    history = small_run(
        "dapo", rollouts=1, reward=both, group_size=2, max_sampling_rounds=4
    )
    assert history["sampling/rounds"][0] > 1
    assert history["rewards/correct/mean"] == pytest.approx(history["reward"])
