"""Misreadings of the soft gate and of its theorem."""

import math

import pytest
import torch
from torch import tensor
from torch.autograd import grad

from course.misreadings import MISREADINGS
from refimpl.algorithms import ALGORITHMS

pytestmark = pytest.mark.usefixtures("float64")
SAPO, GRPO = ALGORITHMS["sapo"], ALGORITHMS["grpo"]
EQUAL = {"tau_pos": 1.0, "tau_neg": 1.0}


def package(algorithm, settings):
    """The package's objective of one-token responses, as a function of the ratio."""

    def objective(r, advantage):
        logp = r.log()[:, None]
        one = torch.ones_like(logp)
        batch = (logp, 0 * one, advantage.expand(len(r)), one)
        return -algorithm.policy_loss(*batch, weight=one, **settings).loss

    return objective


def weights(objective, r, advantage):
    """w in ∇J = w Â ∇log π: the slope in log r, over Â."""
    z = tensor(r).log().requires_grad_()
    value = objective(z.exp(), tensor(advantage)).sum()
    return (grad(value, z)[0] / advantage).tolist()


def three(name, r, advantage):
    pair = MISREADINGS[name]
    ours = package(SAPO, EQUAL)
    return [weights(f, r, advantage) for f in (pair.wrong, pair.right, ours)]


@pytest.mark.parametrize("advantage", [1.0, -0.5])
@pytest.mark.parametrize(
    "name",
    ["sapo_counts_ratio_twice", "sapo_without_four_over_tau", "sapo_becomes_grpo"],
)
def test_the_package_sides_with_the_right_one(name, advantage):
    wrong, right, ours = three(name, [0.3, 0.7, 1.0, 1.4, 2.5], advantage)
    assert ours == pytest.approx(right)
    assert ours != pytest.approx(wrong, rel=1e-2)
    assert right[2] == pytest.approx(1)


def test_sapo_counts_ratio_twice():
    """At r = 1 the weight is f'(1) + f(1) = 1 + 2/τ = 3; it should be 1."""
    wrong, right, _ = three("sapo_counts_ratio_twice", [1.0], 1.0)
    assert wrong == pytest.approx([3])
    assert right == pytest.approx([1])


def test_sapo_without_four_over_tau():
    """A quarter of the step at τ = 1, everywhere."""
    wrong, right, _ = three("sapo_without_four_over_tau", [0.5, 1.0, 2.0], -1.0)
    assert [4 * w for w in wrong] == pytest.approx(right)


def test_sapo_becomes_grpo():
    """Far out, Â > 0: GRPO keeps nothing above and all below; SAPO neither."""
    wrong, right, _ = three("sapo_becomes_grpo", [0.2, 2.5], 1.0)
    assert wrong == pytest.approx([0.2, 0])
    soft = [r / math.cosh((r - 1) / 2) ** 2 for r in (0.2, 2.5)]
    assert right == pytest.approx(soft)
    assert right[0] < 0.2 and right[1] > 1
    hard = package(GRPO, {"epsilon_low": 0.2, "epsilon_high": 0.2})
    assert weights(hard, [0.2, 2.5], 1.0) == pytest.approx(wrong)


def test_mean_gate_bounds_gradient():
    """z = 0.1 ± 0.01 with scores ±1: beyond the first bound, within the second."""
    pair, tau = MISREADINGS["mean_gate_bounds_gradient"], 8.8
    scores = tensor([1.0, -1.0, 1.0, -1.0])
    z = 0.1 + 0.01 * scores
    gate = 1 / torch.cosh(tau * z / 2) ** 2
    middle = 1 / torch.cosh(tau * z.mean() / 2) ** 2
    gap = ((gate - middle) * scores).mean().abs()
    assert 5 * pair.wrong(z, scores, tau) < gap <= pair.right(z, scores, tau)
    # … while the mean gate does keep to the first
    assert (gate.mean() - middle).abs() <= pair.wrong(z, torch.ones(4), tau)
