"""The gates that nobody published: each is what its docstring says."""

import pytest
import torch

from experiments import arms
from refimpl import curve, from_gate

R = torch.linspace(0.3, 3.0, 541, dtype=torch.float64)
SIGNS = (1.0, -1.0)


def soft(tau=8.8):
    """SAPO's gate."""
    return curve("sapo", 1.0, R, tau_pos=tau).coefficient / R


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize("falling", [True, False])
def test_the_one_sided_gate_is_sapos_moving_on_and_open_coming_back(rising, falling):
    """Each sign of Â by itself; and finite for every ratio that the loss can see."""
    gate = arms.one_sided(8.8, rising, falling)
    for sign, back in ((1.0, (R < 1) & rising), (-1.0, (R > 1) & falling)):
        expected = torch.where(back, 1.0, soft())
        assert torch.allclose(gate(R, sign * torch.ones_like(R)), expected, atol=1e-12)
        found = curve(from_gate(gate), sign, R).coefficient
        assert torch.allclose(found, R * expected, atol=1e-10)
        extreme = gate(torch.tensor([2e-9, 1.0, 4.9e8]), sign * torch.ones(3))
        assert torch.isfinite(extreme).all()


def test_the_two_sided_clip_is_grpos_where_a_token_moves_on_and_shut_where_it_returns():
    gate = from_gate(arms.two_sided_clip(0.2))
    for sign in SIGNS:
        theirs = curve("grpo", sign, R, epsilon=0.2).coefficient
        ours = curve(gate, sign, R).coefficient
        returns = ((R > 1) != (sign > 0)) & ((R - 1).abs() > 0.2 + 1e-9)
        edge = ((R - 1).abs() - 0.2).abs() < 1e-9
        assert torch.allclose(ours[~returns & ~edge], theirs[~returns & ~edge])
        assert (ours[returns] == 0).all() and (theirs[returns] > 0).all()


def test_the_coin_of_weight_lets_through_what_one_side_lets_through_on_any_side():
    """Weight (1 − g) r |Â|, within the noise of 40,000 coins; where Â is 0 none."""
    dice = torch.Generator().manual_seed(0)
    r = (0.3 * torch.randn(40_000, generator=dice)).exp().double()
    advantages = torch.randint(-1, 2, (40_000,), generator=dice).double()
    on = torch.rand(40_000, generator=dice) < 0.5  # three of four move on
    advantages = torch.where(on, (r - 1).sign() * advantages.abs(), advantages)
    closed = 1 - arms._soft(r, 8.8)
    weight = closed * r * advantages.abs()
    gate = arms.coin_of_weight(8.8)(r, advantages)
    opened = (gate == 1) & (closed > 0)
    assert torch.allclose(gate[~opened], 1 - closed[~opened], atol=1e-12)
    one_side = (arms.one_sided(8.8)(r, advantages) == 1) & (closed > 0)
    ours, theirs = weight[opened].sum(), weight[one_side].sum()
    assert abs(ours / theirs - 1) < 0.03
    back = (r - 1) * advantages < 0
    for side in (back, ~back):  # the same share of either side
        share = weight[opened & side].sum() / weight[side].sum()
        assert abs(share - ours / weight.sum()) < 0.03
    still = arms.coin_of_weight(8.8)(torch.ones(3), torch.ones(3))
    assert torch.equal(still, torch.ones(3))
