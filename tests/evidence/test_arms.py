"""The gates that nobody published: each is what its docstring says."""

import pytest
import torch

from refimpl.algorithms import from_gate, get
from refimpl.curves import curve
from refimpl.lab import arms

R = torch.linspace(0.3, 3.0, 541, dtype=torch.float64)[None]
GOOD, BAD = torch.ones_like(R), -torch.ones_like(R)


def test_the_one_sided_gate_is_sapos_moving_on_and_open_coming_back():
    r = torch.tensor([0.4, 0.9, 1.1, 1.8], dtype=torch.float64)
    mine = from_gate(arms.one_sided(8.8))
    for sign, open_below in ((1.0, True), (-1.0, False)):
        gated = curve("sapo", sign, r, tau_pos=8.8, tau_neg=8.8).coefficient
        found = curve(mine, sign, r).coefficient
        back = (r < 1) if open_below else (r > 1)
        expected = torch.where(back, r, gated)
        assert torch.allclose(found, expected, atol=1e-10)


def test_a_one_sided_gate_can_be_open_for_one_sign_only():
    r = torch.tensor([0.4, 1.8], dtype=torch.float64)
    soft = curve("sapo", 1.0, r, tau_pos=8.8).coefficient / r
    for rising, falling in ((True, False), (False, True), (False, False)):
        gate = arms.one_sided(8.8, rising, falling)
        found = torch.stack([gate(r, torch.ones(2)), gate(r, -torch.ones(2))])
        expected = torch.stack([soft, soft])
        expected[0, 0] = 1.0 if rising else soft[0]
        expected[1, 1] = 1.0 if falling else soft[1]
        assert torch.allclose(found, expected, atol=1e-12)


def test_the_gate_is_finite_for_every_ratio_the_loss_can_see():
    r = torch.tensor([[2e-9, 1.0, 4.9e8]])
    for sign in (1.0, -1.0):
        assert torch.isfinite(arms.one_sided(8.8)(r, sign * torch.ones(1, 3))).all()


def test_the_two_sided_clip_is_grpos_where_a_token_moves_on_and_shut_where_it_returns():
    mine, epsilon = from_gate(arms.two_sided_clip(0.2)), {"epsilon": 0.2}
    for sign in (1.0, -1.0):
        theirs = curve("grpo", sign, R[0], **epsilon).coefficient
        found = curve(mine, sign, R[0]).coefficient
        moves_on = (R[0] > 1) == (sign > 0)
        inside = (R[0] - 1).abs() < 0.2 - 1e-9
        outside = (R[0] - 1).abs() > 0.2 + 1e-9
        assert torch.allclose(found[moves_on & outside], theirs[moves_on & outside])
        assert torch.allclose(found[inside], theirs[inside])
        assert (found[~moves_on & outside] == 0).all()
        assert (theirs[~moves_on & outside] > 0).all()


def test_half_open_lets_as_many_through_as_one_sided_and_others():
    """One side of 1 is half of the tokens if ratios are spread about 1 evenly."""
    r = (0.3 * torch.randn(1, 40_000, generator=torch.Generator().manual_seed(0))).exp()
    soft, half = arms._soft(r, 8.8), arms.half_open(8.8)
    found = half(r, torch.ones_like(r))
    opened = found != soft
    assert abs(opened.double().mean().item() - 0.5) < 0.02
    assert (found[opened] == 1).all()
    for side in (r < 1, r > 1):  # the coin does not look at the side,
        assert abs(opened[side].double().mean().item() - 0.5) < 0.02
    assert torch.equal(found, half(r, -torch.ones_like(r)))  # nor at the sign,
    assert torch.equal(found, half(r, torch.ones_like(r)))  # and falls alike again


@pytest.mark.parametrize("bad", [0.5, 0.0])
def test_bad_responses_have_the_weight_that_is_said_and_good_ones_keep_theirs(bad):
    gate = arms.bad_weighted(8.8, bad)
    soft = curve("sapo", 1.0, R[0], tau_pos=8.8).coefficient / R[0]
    assert torch.allclose(gate(R, GOOD)[0], soft)
    assert torch.allclose(gate(R, BAD)[0], bad * soft)


def test_every_arm_builds_what_its_name_says():
    built = {name: arm.build() for name, arm in arms.ARMS.items()}
    assert built["GRPO"][0] is get("grpo")
    for name, gate in (
        ("one-sided 4.4", arms.one_sided(4.4)),
        ("one-sided 17.6", arms.one_sided(17.6)),
        ("two-sided clip", arms.two_sided_clip(0.2)),
        ("SAPO 8.8, half open", arms.half_open(8.8)),
        ("SAPO 8.8, bad at 0", arms.bad_weighted(8.8, 0.0)),
    ):
        for sign in (1.0, -1.0):
            expected = curve(from_gate(gate), sign, R[0]).coefficient
            assert torch.equal(curve(built[name][0], sign, R[0]).coefficient, expected)
    taus = {"tau_pos": 17.6, "tau_neg": 8.8}
    assert built["SAPO 17.6, neg ½"][1]["hyperparameters"] == taus
