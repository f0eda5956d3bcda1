"""The curves come out of the real losses, of anybody's."""

from dataclasses import replace

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from refimpl.algorithms import ALGORITHMS, Objective
from refimpl.curves import GRID, curve
from refimpl.gate import from_gate
from tests.losses.batches import EXACT, FLOAT64, every, one_token

pytestmark = FLOAT64
RATIOS = torch.tensor([0.1, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 2.0, 5.0]).double()


@every
@pytest.mark.parametrize("a", [2.0, -2.0])
def test_a_curve_is_the_loss_that_trains_and_its_slope(algorithm, a):
    """−loss of one-token responses of weight 1, and ∂/∂log π over the advantage."""
    found = curve(algorithm.name, a, RATIOS)
    assert_close(found.gate, found.coefficient / RATIOS, **EXACT)
    for i, r in enumerate(RATIOS.tolist()):
        objective, slope = one_token(algorithm, a, r)
        assert found.objective[i].item() == pytest.approx(objective, abs=1e-12)
        assert found.coefficient[i].item() == pytest.approx(slope / a, abs=1e-12)


def test_a_curve_on_probabilities_is_that_of_the_token_that_is_asked_for():
    """δ = 0.2: π_old = 0.1 may reach 0.3, r = 3, and 0.4 may reach 0.6, r = 1.5; with
    δ = 0.25 the bounds are 3.5 and 1.625."""
    for old, bound in ((0.1, 3), (0.4, 1.5)):
        found = curve("dppo_tv", 1.0, RATIOS, old)
        assert_close(found.coefficient, torch.where(bound > RATIOS, RATIOS, 0.0))
    wide = curve("dppo_tv", 1.0, tensor([3.4, 3.6]).double(), 0.1, delta_high=0.25)
    assert_close(wide.coefficient, tensor([3.4, 0.0]).double())


def test_a_curve_follows_an_objective_of_ones_own():
    """Of a method with another objective, or of a gate: no closed form."""

    def cubed(t):
        return Objective(t.z.exp() ** 3 * t.advantages)

    found = curve(replace(ALGORITHMS["grpo"], objective=cubed), 1.0)
    assert_close(found.ratio, GRID)
    assert_close(found.objective, GRID**3)
    assert_close(found.coefficient, 3 * GRID**3)
    half = curve(from_gate(lambda r, a: 0.5 * torch.ones_like(r)), 1.0, RATIOS)
    assert_close(half.gate, torch.full_like(RATIOS, 0.5))
