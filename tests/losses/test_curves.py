"""The curves come out of the real losses, of anybody's."""

from dataclasses import replace

import torch
from torch import tensor
from torch.testing import assert_close

from refimpl.algorithms import ALGORITHMS, Objective
from refimpl.curves import GRID, curve
from refimpl.gate import from_gate
from tests.losses.batches import FLOAT64

pytestmark = FLOAT64
RATIOS = torch.tensor([0.1, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 2.0, 5.0]).double()


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

    for a in (1.0, -2.0):
        found = curve(replace(ALGORITHMS["grpo"], objective=cubed), a)
        assert_close(found.ratio, GRID)
        assert_close(found.objective, a * GRID**3)
        assert_close(found.coefficient, 3 * GRID**3)
        assert_close(found.gate, 3 * GRID**2)
    half = curve(from_gate(lambda r, a: 0.5 * torch.ones_like(r)), 1.0, RATIOS)
    assert_close(half.gate, torch.full_like(RATIOS, 0.5))
