"""Misreadings of CISPO."""

import math

import pytest
import torch
from torch import tensor
from torch.autograd import grad

from course.misreadings import MISREADINGS
from refimpl.algorithms import ALGORITHMS

pytestmark = pytest.mark.usefixtures("float64")

OLD = [-4.0, -0.5, -2.0, -3.0]
Z = [2.5, -1.2, 0.3, 0.0]  # beyond the cap, below PPO's floor, and between
A = [1.0, 1.0, -1.5, 0.7]


def package(logp, old_logp, advantages, cap=5.0):
    loss = ALGORITHMS["cispo"].policy_loss(
        logp[None],
        old_logp[None],
        advantages[None],
        torch.ones_like(logp)[None],
        max_ratio=cap,
    )
    return -loss.loss


def weights(function, z=Z, old=OLD, a=A, **cap):
    """w in ∇J = w Â ∇log π, token by token."""
    old, a = tensor(old), tensor(a)
    logp = (old + tensor(z)).requires_grad_()
    return (grad(function(logp, old, a, **cap), logp)[0] * len(a) / a).tolist()


NAMES = [
    "cispo_clips_both_sides",
    "cispo_cap_is_an_offset",
    "cispo_without_stop_gradient",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_package_sides_with_the_right_one(name):
    pair = MISREADINGS[name]
    assert weights(pair.right) == pytest.approx(weights(package))
    assert weights(pair.wrong) != pytest.approx(weights(package), rel=1e-2)


def test_cispo_clips_both_sides():
    """r = e^−1.2 = 0.30 keeps its weight; the misreading lifts it to 0.8."""
    pair = MISREADINGS["cispo_clips_both_sides"]
    assert weights(pair.right)[1] == pytest.approx(math.exp(-1.2))
    assert weights(pair.wrong)[1] == pytest.approx(0.8)
    assert weights(package)[1] == pytest.approx(math.exp(-1.2))


def test_cispo_cap_is_an_offset():
    """r = e^2.5 = 12.2: weight 5, not 6; and a cap of 1.28 is not 2.28."""
    pair = MISREADINGS["cispo_cap_is_an_offset"]
    assert weights(pair.right)[0] == pytest.approx(5)
    assert weights(pair.wrong)[0] == pytest.approx(6)
    assert weights(package)[0] == pytest.approx(5)
    assert weights(package, cap=1.28)[0] == pytest.approx(1.28)
    assert weights(pair.wrong, cap=1.28)[0] == pytest.approx(2.28)


def test_cispo_without_stop_gradient():
    """On policy: 1 + log π for the weight, negative below 1/e, where 1 is right."""
    pair = MISREADINGS["cispo_without_stop_gradient"]
    on_policy = {"z": [0.0] * 4}
    assert weights(pair.right, **on_policy) == pytest.approx([1.0] * 4)
    assert weights(package, **on_policy) == pytest.approx([1.0] * 4)
    wrong = weights(pair.wrong, **on_policy)
    assert wrong == pytest.approx([1 + x for x in OLD])
    assert [w < 0 for w in wrong] == [x < -1 for x in OLD]
