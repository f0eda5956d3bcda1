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


def coefficients(function, z=Z, old=OLD, a=A, **cap):
    """c in ∇J = c Â ∇log π, token by token."""
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
    assert coefficients(pair.right) == pytest.approx(coefficients(package))
    assert coefficients(pair.wrong) != pytest.approx(coefficients(package), rel=1e-2)


def test_cispo_clips_both_sides():
    """r = e^−1.2 = 0.30 keeps its coefficient; the misreading lifts it to 0.8."""
    pair = MISREADINGS["cispo_clips_both_sides"]
    assert coefficients(pair.right)[1] == pytest.approx(math.exp(-1.2))
    assert coefficients(pair.wrong)[1] == pytest.approx(0.8)
    assert coefficients(package)[1] == pytest.approx(math.exp(-1.2))


def test_cispo_cap_is_an_offset():
    """r = e^2.5 = 12.2: c is 5, not 6; and a cap of 1.28 is not 2.28."""
    pair = MISREADINGS["cispo_cap_is_an_offset"]
    assert coefficients(pair.right)[0] == pytest.approx(5)
    assert coefficients(pair.wrong)[0] == pytest.approx(6)
    assert coefficients(package)[0] == pytest.approx(5)
    assert coefficients(package, cap=1.28)[0] == pytest.approx(1.28)
    assert coefficients(pair.wrong, cap=1.28)[0] == pytest.approx(2.28)


def test_cispo_without_stop_gradient():
    """On policy: 1 + log π for c, negative below 1/e, where 1 is right."""
    pair = MISREADINGS["cispo_without_stop_gradient"]
    on_policy = {"z": [0.0] * 4}
    assert coefficients(pair.right, **on_policy) == pytest.approx([1.0] * 4)
    assert coefficients(package, **on_policy) == pytest.approx([1.0] * 4)
    wrong = coefficients(pair.wrong, **on_policy)
    assert wrong == pytest.approx([1 + x for x in OLD])
    assert [w < 0 for w in wrong] == [x < -1 for x in OLD]
