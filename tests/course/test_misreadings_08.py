"""Misreadings of GMPO."""

import pytest
import torch
from torch import tensor
from torch.autograd import grad

from course.misreadings import MISREADINGS
from refimpl.algorithms import ALGORITHMS

pytestmark = pytest.mark.usefixtures("float64")


def package(z, advantage):
    logp = z[None]
    one = torch.ones_like(logp)
    loss = ALGORITHMS["gmpo"].policy_loss(logp, 0 * one, advantage[None], one).loss
    return -loss


def both(name, z, a):
    """(value, gradient) of wrong, right and the package."""
    found = []
    for function in (MISREADINGS[name].wrong, MISREADINGS[name].right, package):
        x = tensor(z, requires_grad=True)
        value = function(x, tensor(a))
        found.append((value.item(), grad(value, x)[0].tolist()))
    return found


@pytest.mark.parametrize(
    ("z", "a"), [([0.9, -0.1, 0.2], 1.0), ([-0.9, 0.7, 0.0], -1.5)]
)
@pytest.mark.parametrize(
    "name", ["gmpo_bounds_are_offsets", "gmpo_drops_clipped_tokens"]
)
def test_the_package_sides_with_the_right_one(name, z, a):
    wrong, right, ours = both(name, z, a)
    assert ours[0] == pytest.approx(right[0])
    assert ours[1] == pytest.approx(right[1])
    assert wrong[0] != pytest.approx(right[0], rel=1e-2)


def test_gmpo_bounds_are_offsets():
    """On policy, a good response has no gradient at all."""
    wrong, right, _ = both("gmpo_bounds_are_offsets", [0.0, 0.0], 1.0)
    assert wrong[1] == [0, 0]
    assert right[1] == pytest.approx([0.5, 0.5])


def test_gmpo_drops_clipped_tokens():
    """One token of two beyond the bound: 1/1 for 1/2 of the gradient."""
    wrong, right, _ = both("gmpo_drops_clipped_tokens", [0.9, 0.0], 1.0)
    assert wrong[1] == pytest.approx([0, 1])
    assert right[1] == pytest.approx([0, 0.5 * 2.718281828459045**0.2])


def test_gmpo_objective_is_smaller():
    """r = (2, ½), A = +1 and r = (1¼, 1¼), A = −1: 0 against 0.125."""
    pair = MISREADINGS["gmpo_objective_is_smaller"]
    arithmetic, geometric = tensor([1.25, -1.25]), tensor([1.0, -1.25])
    assert pair.wrong(geometric) == 0.125 > pair.wrong(arithmetic) == 0
    assert pair.right(geometric) <= pair.right(arithmetic)
