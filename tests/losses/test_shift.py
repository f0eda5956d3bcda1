"""The formulas of a mixture of experts: the router shift γ, in a loss through π_old or
through the weight; the load-balancing loss.

How a model's routers are recorded and replayed, and their weights' gradient then, is
tested in tests/rollout/test_moe.py.
"""

import math

import pytest
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl import moe
from refimpl.algorithms import ALGORITHMS
from refimpl.moe import Routing, load_balance
from refimpl.normalisers import seq_mean_token_mean
from tests.losses.batches import FLOAT64, NAN

pytestmark = FLOAT64
GRPO, GSPO = ALGORITHMS["grpo"], ALGORITHMS["gspo"]


# One response of two tokens by hand: r = 1.1 and 0.7, γ = 0.9 and 0.8

S, GAMMA = math.sqrt(1.1 * 0.7), math.sqrt(0.9 * 0.8)
NARROW, ABOVE = {"epsilon_low": 0.2, "epsilon_high": 0.05}, {"epsilon_high": 0.09}
BEFORE, AFTER = moe.PLACEMENTS


@pytest.mark.parametrize(
    ("algorithm", "placement", "hyper", "a", "value", "slope"),
    [
        # γ r = 0.99 and 0.56: the bound 1.05 no longer bites
        (GRPO, BEFORE, NARROW, 1.0, (0.99 + 0.56) / 2, [0.99 / 2, 0.56 / 2]),
        # min(1.1, 1.05) · 0.9 and 0.7 · 0.8: the clipped token stays clipped
        (GRPO, AFTER, NARROW, 1.0, (1.05 * 0.9 + 0.7 * 0.8) / 2, [0, 0.56 / 2]),
        # s γ, by γ's geometric mean: unclipped, both placements are the same
        (GSPO, BEFORE, ABOVE, 1.0, S * GAMMA, [S * GAMMA / 2] * 2),
        (GSPO, AFTER, ABOVE, 1.0, S * GAMMA, [S * GAMMA / 2] * 2),
        # Â < 0: γ s = 0.745 is clipped at 1 − 0.2, s = 0.877 is not
        (GSPO, BEFORE, NARROW, -1.0, -0.8, [0, 0]),
        (GSPO, AFTER, NARROW, -1.0, -S * GAMMA, [-S * GAMMA / 2] * 2),
    ],
)
def test_a_shift_by_hand(algorithm, placement, hyper, a, value, slope):
    """By a constant; on padding γ may be anything."""
    logp, mask = tensor([[1.1, 0.7, 1.0]]).log(), tensor([[1.0, 1.0, 0.0]])
    gamma = tensor([[0.9, 0.8, NAN]], requires_grad=True)
    given, how = (mask, gamma), (placement, algorithm.one_ratio)
    old, weight = moe.shifted(0 * mask, seq_mean_token_mean(mask), *given, *how)
    assert not (old.requires_grad or weight.requires_grad)
    logp.requires_grad_()
    loss = algorithm.policy_loss(logp, old, tensor([a]), mask, weight, **hyper).loss
    assert -loss.item() == pytest.approx(value)
    assert_close(-grad(loss, logp)[0], tensor([[*slope, 0]]) * 1.0)


def test_router_shift_by_hand():
    """Two layers of two experts: mean |Δ| = (.1 + .2 + .3 + 0)/4 = .15; a floor of .7
    by default; a gradient only above it."""
    old = tensor([[[-1.0, -2.0], [-0.5, -3.0]]])
    new = (old + tensor([[0.1, -0.2], [0.3, 0.0]])).requires_grad_()
    gamma = moe.router_shift(new, old)
    assert gamma.item() == pytest.approx(math.exp(-0.15))
    (slope,) = grad(gamma, new)
    g = math.exp(-0.15) / 4
    assert_close(slope, tensor([[[-g, g], [-g, 0.0]]]))
    assert moe.router_shift(old, old).item() == 1
    assert moe.router_shift(old - 3, old).item() == pytest.approx(0.7)
    floored = moe.router_shift(new - 3, old, floor=0.1)
    assert floored.item() == pytest.approx(0.1)
    assert grad(floored, new)[0].abs().max() == 0


def test_load_balance_by_hand():
    """E Σ_e (share of visits to e) (mean probability of e), padding left out.

    Two layers of two tokens, the last of each padding; k = 1 of E = 2: probabilities
    (¾, ¼) and (½, ½), visits to expert 0 and 1: 2 (½ · ⅝ + ½ · ⅜) = 1.
    """
    first, second = tensor([[3.0, 1.0], [1.0, 9.0]]), tensor([[1.0, 1.0], [9, 1]])
    logits = [first.log(), second.log()]
    experts = [tensor([[0], [1]]), tensor([[1], [1]])]
    routing, real = Routing(logits, experts), tensor([[True, False]])
    assert load_balance(routing, real).item() == pytest.approx(1, abs=1e-6)
    # With padding: probabilities (¾, ¼), (.1, .9), (½, ½), (.9, .1), visits ¼ and ¾
    whole = 2 * (0.25 * 2.25 / 4 + 0.75 * 1.75 / 4)
    assert load_balance(routing).item() == pytest.approx(whole, abs=1e-6)
