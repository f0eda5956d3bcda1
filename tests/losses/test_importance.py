"""Log-ratios, token and sequence ratios, and the truncated sampler weight."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl.importance import (
    LOG_RATIO_LIMIT,
    gspo_token_log_ratio,
    log_ratio,
    ratio,
    sequence_log_ratio,
    truncated_weight,
)

pytestmark = pytest.mark.usefixtures("float64")
NAN, INF = math.nan, math.inf


def test_log_ratio_by_hand():
    logp, old_logp = tensor([[-1.0, -2.0, -3.0]]), tensor([[-1.5, -2.0, -1.0]])
    z = log_ratio(logp, old_logp, tensor([[1.0, 1.0, 0.0]]))
    # −1 − (−1.5) = 0.5,  −2 − (−2) = 0,  and 0 on padding
    assert z.tolist() == [[0.5, 0.0, 0.0]]


@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e300])
def test_padding_may_hold_anything(garbage):
    """Value and gradient are exactly 0 there, and the response is not touched."""
    logp = tensor([[-1.0, garbage]], requires_grad=True)
    z = log_ratio(logp, tensor([[-2.0, garbage]]), tensor([[1.0, 0.0]]))
    (slope,) = grad(z.sum(), logp)
    assert z.tolist() == [[1.0, 0.0]]
    assert slope.tolist() == [[1.0, 0.0]]


def test_the_old_policy_is_a_constant():
    logp = tensor([[-1.0, -2.0]], requires_grad=True)
    old_logp = tensor([[-2.0, -2.0]], requires_grad=True)
    log_ratio(logp, old_logp, tensor([[1.0, 1.0]])).sum().backward()
    assert logp.grad.tolist() == [[1.0, 1.0]]
    assert old_logp.grad is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_raised_before_subtracting(dtype):
    """−2048 + 0.0625 = −2047.9375, which half precision would round to −2048."""
    logp = tensor([[-2048.0]], dtype=dtype)
    z = log_ratio(logp, tensor([[-0.0625]], dtype=dtype), tensor([[1.0]]))
    assert z.dtype == torch.float32
    assert z.item() == -2047.9375


@pytest.mark.parametrize("mask", [tensor([[1, 0]]), tensor([[True, False]])])
def test_log_ratio_takes_int_and_bool_masks(mask):
    z = log_ratio(tensor([[-1.0, -1.0]]), tensor([[-3.0, -3.0]]), mask)
    assert z.tolist() == [[2.0, 0.0]]


def test_ratio_is_exp_and_is_its_own_derivative():
    z = tensor([0.0, math.log(2), math.log(0.5)], requires_grad=True)
    r = ratio(z)
    assert_close(r, tensor([1.0, 2.0, 0.5]), rtol=0, atol=1e-15)
    (slope,) = grad(r.sum(), z)
    assert_close(slope, r)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("extreme", [50.0, 200.0, -50.0, -200.0])
def test_extreme_ratios_are_held_at_the_limit_without_a_gradient(extreme, dtype):
    z = tensor([[extreme]], dtype=dtype, requires_grad=True)
    r = ratio(log_ratio(z, torch.zeros_like(z), torch.ones_like(z)))
    (slope,) = grad(r.sum(), z)
    held = math.exp(math.copysign(20, extreme))  # 4.9e8 or 2.1e-9
    assert_close(r.double().item(), held, rtol=1e-6, atol=0)
    assert slope.item() == 0


def test_ratio_is_exact_up_to_the_limit():
    z = tensor([19.9, -19.9, 20.1, -20.1], requires_grad=True)
    r = ratio(z)
    (slope,) = grad(r.sum(), z)
    assert LOG_RATIO_LIMIT == 20
    assert_close(r[:2], z[:2].exp())
    assert_close(slope, tensor([math.exp(19.9), math.exp(-19.9), 0.0, 0.0]))


def test_sequence_ratio_is_the_geometric_mean():
    """Token ratios 2, ½, 8 of one response: (2 · ½ · 8)^(1/3) = 2."""
    z = tensor([[2.0, 0.5, 8.0, 1.0]]).log()
    s = ratio(sequence_log_ratio(z, tensor([[1.0, 1.0, 1.0, 0.0]])))
    assert_close(s, tensor([2.0]))


def test_sequence_ratio_does_not_grow_with_length():
    """Every token at ratio 1.1 gives s = 1.1, for 1 token as for 50."""
    mask = (torch.arange(50) < tensor([[1], [50]])).double()
    s = ratio(sequence_log_ratio(math.log(1.1) * mask, mask))
    assert_close(s, tensor([1.1, 1.1]))


def test_sequence_log_ratio_shares_its_gradient_equally():
    z = tensor([[0.3, -0.2, 0.9], [0.1, 0.0, 0.0]], requires_grad=True)
    mask = tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    (slope,) = grad(sequence_log_ratio(z, mask).sum(), z)
    assert_close(slope, tensor([[1 / 3, 1 / 3, 1 / 3], [1.0, 0.0, 0.0]]))


def test_an_empty_row_has_sequence_log_ratio_zero():
    assert sequence_log_ratio(tensor([[0.0, 0.0]]), tensor([[0.0, 0.0]])).item() == 0


def test_gspo_token_ratio_has_the_value_s_and_the_gradient_s_grad_logp():
    """∂ s_{i,t} / ∂ logp_{i,u} = s_i if t = u, else 0."""
    mask = tensor([[1.0, 1.0, 1.0]])
    logp = tensor([[-1.0, -2.0, -0.5]], requires_grad=True)
    z = log_ratio(logp, tensor([[-1.3, -1.9, -0.1]]), mask)
    s = math.exp((0.3 - 0.1 - 0.4) / 3)
    token = ratio(gspo_token_log_ratio(logp, z, mask))
    assert_close(token, tensor([[s, s, s]]))
    jacobian = torch.stack([grad(t, logp, retain_graph=True)[0][0] for t in token[0]])
    assert_close(jacobian, s * torch.eye(3))


def test_gspo_token_and_gspo_have_the_same_gradient_in_the_mean():
    """(1/T) Σ_t ∇s_{i,t} = ∇s_i = s_i (1/T) Σ_t ∇log π_θ(o_t)."""
    mask = tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    logp = tensor([[-1.0, -2.0, -0.5], [-0.7, NAN, NAN]], requires_grad=True)
    z = log_ratio(logp, tensor([[-1.3, -1.9, -0.1], [-0.2, NAN, NAN]]), mask)
    by_token = (ratio(gspo_token_log_ratio(logp, z, mask)) * mask).sum(-1) / mask.sum(
        -1
    )
    by_sequence = ratio(sequence_log_ratio(z, mask))
    assert_close(by_token, by_sequence)
    slopes = [
        grad(x.sum(), logp, retain_graph=True)[0] for x in (by_token, by_sequence)
    ]
    assert_close(slopes[0], slopes[1])
    expected = (
        tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]) * by_sequence[:, None].detach()
    )
    assert_close(slopes[0], expected / mask.sum(-1, keepdim=True))


def test_truncated_weight_by_hand():
    """π_old/π_rollout = 3, ½ and 2; padding weighs e⁰ = 1, whatever it holds."""
    old_logp = tensor([[3.0, 0.5, 2.0, NAN]]).log()
    mask = tensor([[1.0, 1.0, 1.0, 0.0]])
    zero = torch.zeros(1, 4)
    assert_close(truncated_weight(old_logp, zero, mask), tensor([[2.0, 0.5, 2.0, 1.0]]))
    wider = truncated_weight(old_logp, zero, mask, cap=3.5)
    assert_close(wider, tensor([[3.0, 0.5, 2.0, 1.0]]))


def test_truncated_weight_is_a_constant():
    old_logp = tensor([[-1.0]], requires_grad=True)
    rollout_logp = tensor([[-1.2]], requires_grad=True)
    weight = truncated_weight(old_logp, rollout_logp, tensor([[1.0]]))
    assert not weight.requires_grad
    assert weight.item() == pytest.approx(math.exp(0.2))


def test_untruncated_weight_removes_the_mismatch_and_truncation_brings_some_back():
    """Σ_a π_rollout w f = Σ_a π_old f, exactly, while no weight reaches the cap."""
    old, rollout, f = (
        tensor([0.5, 0.4, 0.1]),
        tensor([0.1, 0.6, 0.3]),
        tensor([1.0, 2, 4]),
    )

    def mean(cap):
        mask = torch.ones(1, 3)
        weight = truncated_weight(old.log()[None], rollout.log()[None], mask, cap)
        return (rollout * weight[0] * f).sum().item()

    exact = (old * f).sum().item()
    assert mean(cap=100) == pytest.approx(exact, abs=1e-12)
    # π_old/π_rollout = 5 on the first action: cap 2 loses 0.1 · (5 − 2) · 1
    assert mean(cap=2) == pytest.approx(exact - 0.3, abs=1e-12)


@pytest.mark.parametrize("cap", [0.0, -1.0, NAN])
def test_a_cap_must_be_positive(cap):
    with pytest.raises(ValueError, match=rf"^cap must be a .*number > 0, got {cap}$"):
        truncated_weight(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), cap)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("of", [0, 1])
def test_a_truncated_weight_is_not_made_of_infinities(bad, of):
    """The clamp would turn log π_rollout = −∞ into the cap: an ordinary number."""
    given = [torch.zeros(2, 3), torch.zeros(2, 3)]
    given[of][1, 2] = bad
    name = ("old_logp", "rollout_logp")[of]
    message = rf"^{name} is {bad} at row 1, token 2: it must be finite; .* mask"
    with pytest.raises(ValueError, match=message):
        truncated_weight(*given, torch.ones(2, 3))
    padding = torch.ones(2, 3)
    padding[1, 2] = 0
    assert truncated_weight(*given, padding).tolist() == [[1.0] * 3] * 2


def test_a_truncated_weight_compares_two_log_probs_of_one_shape():
    message = r"rollout_logp must have shape \(B, T\) = \(2, 3\), got \(2, 1\)"
    with pytest.raises(ValueError, match=message):
        truncated_weight(torch.zeros(2, 3), torch.zeros(2, 1), torch.ones(2, 3))


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=6), st.integers(1, 4))
def test_sequence_log_ratio_ignores_padding_and_order(values, extra):
    z, mask = tensor([values]), torch.ones(1, len(values))
    expected = tensor([sum(values) / len(values)])
    assert_close(sequence_log_ratio(z, mask), expected, rtol=0, atol=1e-12)
    assert_close(sequence_log_ratio(z.flip(1), mask), expected, rtol=0, atol=1e-12)
    padded_z, padded_mask = (
        torch.cat([x, torch.zeros(1, extra)], 1) for x in (z, mask)
    )
    padded = sequence_log_ratio(padded_z, padded_mask)
    assert_close(padded, expected, rtol=0, atol=1e-12)
