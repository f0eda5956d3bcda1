"""Misreadings of RSPO and routing replay."""

import pytest
import torch
from torch import tensor
from torch.autograd import grad

from course.misreadings import MISREADINGS
from refimpl import moe, normalisers
from refimpl.algorithms import ALGORITHMS

pytestmark = pytest.mark.usefixtures("float64")
RSPO = ALGORITHMS["rspo"]

CASES = pytest.mark.parametrize(
    ("z", "a"), [([0.9, -0.1, 0.2], 1.0), ([-0.2, 0.7, 0.0], -1.5)]
)
GAMMA = [0.9, 0.72, 1.0]


def package(z, advantage, gamma):
    one = torch.ones(1, len(z))
    weight = normalisers.seq_mean_token_mean(one)
    old_logp, weight = moe.shifted(0 * one, weight, one, gamma[None], "after_clip")
    loss = RSPO.policy_loss(z[None], old_logp, advantage[None], one, weight)
    return -loss.loss


def slopes(function, z, a):
    """(value, gradient in z, gradient in γ)."""
    x, gamma = tensor(z, requires_grad=True), tensor(GAMMA, requires_grad=True)
    value = function(x, tensor(a), gamma)
    by_z, by_gamma = grad(value, (x, gamma), allow_unused=True)
    none = [0.0] * len(z)
    return value.item(), by_z.tolist(), none if by_gamma is None else by_gamma.tolist()


@CASES
@pytest.mark.parametrize("name", [n for n in MISREADINGS if n.startswith("rspo_")])
def test_the_package_sides_with_the_right_one(name, z, a):
    right, ours = slopes(MISREADINGS[name].right, z, a), slopes(package, z, a)
    for one, other in zip(right, ours, strict=True):
        assert other == pytest.approx(one)


def test_rspo_shift_inside_the_sign():
    pair = MISREADINGS["rspo_shift_inside_the_sign"]
    z = [-0.2, 0.7, 0.0]
    without = abs(tensor(z).mean().exp().item() * -1.5)  # GMPO's, nothing is clipped
    assert abs(slopes(pair.right, z, -1.5)[0]) < without
    wrong, gmpo = (
        pair.wrong(tensor(z), tensor(-1.5), tensor(GAMMA)),
        pair.wrong(tensor(z), tensor(-1.5), torch.ones(3)),
    )
    assert abs(wrong) > abs(gmpo)  # drift weighs the bad response up
    assert slopes(pair.wrong, z, 1.5)[0] == pytest.approx(slopes(pair.right, z, 1.5)[0])


@CASES
def test_rspo_gradient_through_shift(z, a):
    pair = MISREADINGS["rspo_gradient_through_shift"]
    wrong, right = slopes(pair.wrong, z, a), slopes(pair.right, z, a)
    assert wrong[0] == pytest.approx(right[0])
    assert wrong[1] == pytest.approx(right[1])
    assert right[2] == [0.0] * 3
    # d J / d γ_t = J / (|o| γ_t): it has the sign of Â
    assert wrong[2] == pytest.approx([right[0] / (3 * g) for g in GAMMA])


@CASES
def test_rspo_shift_per_token(z, a):
    pair = MISREADINGS["rspo_shift_per_token"]
    right, wrong = slopes(pair.right, z, a)[1], slopes(pair.wrong, z, a)[1]
    moved = [g for g in right if g]
    assert len(moved) > 1
    assert moved == pytest.approx(
        [moved[0]] * len(moved)
    )  # one coefficient per response
    assert len({round(g, 6) for g in wrong if g}) == len(moved)


def test_replay_freezes_router_weights():
    pair = MISREADINGS["replay_freezes_router_weights"]
    logits, experts = tensor([[2.0, 1.0, 0.0, -1.0]]), tensor([[3, 1]])
    logits.requires_grad_()
    right = pair.right(logits, experts)
    assert torch.equal(pair.wrong(logits, experts), right)
    assert not pair.wrong(logits, experts).requires_grad
    slope = grad(right[0, 0], logits)[0][0]
    p = right[0, 0].item()
    assert p == pytest.approx(1 / (1 + torch.e**2), abs=1e-6)
    # of two experts: p(1−p) on the one, minus that on the other
    assert slope.tolist() == pytest.approx([0, -p * (1 - p), 0, p * (1 - p)], abs=1e-6)
