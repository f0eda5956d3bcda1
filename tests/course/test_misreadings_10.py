"""Misreadings of SAPO."""

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from course.misreadings import MISREADINGS
from refimpl.algorithms import ALGORITHMS

pytestmark = pytest.mark.usefixtures("float64")
MASK = tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
A = tensor([[1.0], [-0.5]]).expand(2, 3)
SHARP = {"tau_pos": 4.0, "tau_neg": 8.0}


def slopes(function, z, **taus):
    z = z.clone().requires_grad_()
    return grad(function(z, A, MASK, **taus), z)[0]


def package(z, advantages, mask, **taus):
    loss = ALGORITHMS["sapo"].policy_loss(
        z, torch.zeros_like(z), advantages, mask, **taus
    )
    return -loss.loss


STALE = tensor([[0.5, -0.4, 0.1], [-0.6, 0.3, 0.0]])


@pytest.mark.parametrize(
    "name",
    ["sapo_on_sequence_ratio", "sapo_tau_scales_advantage", "sapo_taus_exchanged"],
)
def test_the_package_sides_with_the_right_one(name):
    pair = MISREADINGS[name]
    ours = slopes(package, STALE, **SHARP)
    assert_close(slopes(pair.right, STALE, **SHARP), ours)
    assert (slopes(pair.wrong, STALE, **SHARP) - ours).abs().max() > 0.01


def test_sapo_on_sequence_ratio():
    """A wild token keeps the response's common weight: it is never singled out."""
    pair = MISREADINGS["sapo_on_sequence_ratio"]
    z = tensor([[2.0, -1.0, -1.0], [0.0, 0.0, 0.0]])  # mean 0: the gate is open
    wrong, right = slopes(pair.wrong, z, **SHARP), slopes(pair.right, z, **SHARP)
    assert wrong[0, 0] == pytest.approx(1 / 6)
    assert right[0, 0] < 1e-6


def test_sapo_tau_scales_advantage():
    """On policy the right gradient does not know τ."""
    pair, on_policy = MISREADINGS["sapo_tau_scales_advantage"], torch.zeros(2, 3)
    for taus in (SHARP, {}):
        expected = slopes(pair.right, on_policy)
        assert_close(slopes(pair.right, on_policy, **taus), expected)
    wrong = slopes(pair.wrong, on_policy, **SHARP)
    assert wrong[0, 0] == pytest.approx(expected[0, 0] / 4)


def test_sapo_taus_exchanged():
    """At |r − 1| = 0.4 the narrower gate is on the bad token."""
    pair = MISREADINGS["sapo_taus_exchanged"]
    z = tensor([[1.4, 1.0, 1.0], [0.6, 1.0, 1.0]]).log()
    for function, narrower in ((pair.right, 1), (pair.wrong, 0)):
        slope = slopes(function, z, **SHARP)
        left = slope[:, 0] / (A[:, 0] * z[:, 0].exp()) * tensor([6.0, 4.0])
        assert left.argmin() == narrower
