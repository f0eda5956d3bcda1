"""k1, k2, k3 as values and as losses, by enumeration; KL in the reward."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl.kl import ESTIMATORS, k1, k2, k3, token_rewards

pytestmark = pytest.mark.usefixtures("float64")


def policies():
    """Logits of π_θ (a leaf) and log-probs of π_ref, over four tokens."""
    logits = tensor([0.5, -1.0, 0.2, 1.3], requires_grad=True)
    return logits, tensor([0.0, 0.4, -0.9, 0.8]).log_softmax(-1)


def kl(p_log, q_log):
    return (p_log.exp() * (p_log - q_log)).sum()


def test_by_hand():
    """π_θ = ½ and π_ref = ¼: d = log 2, and π_ref/π_θ = ½."""
    logp, ref_logp, d = tensor(0.5).log(), tensor(0.25).log(), math.log(2)
    assert k1(logp, ref_logp).item() == pytest.approx(d, abs=1e-15)
    assert k2(logp, ref_logp).item() == pytest.approx(d**2 / 2, abs=1e-15)
    assert k3(logp, ref_logp).item() == pytest.approx(0.5 - 1 + d, abs=1e-15)
    # the other way round, π_ref/π_θ = 2
    assert k1(ref_logp, logp).item() == pytest.approx(-d, abs=1e-15)
    assert k3(ref_logp, logp).item() == pytest.approx(2 - 1 - d, abs=1e-15)


def test_equal_policies_have_no_kl():
    for estimate in ESTIMATORS.values():
        assert estimate(tensor([-0.1, -7.0]), tensor([-0.1, -7.0])).tolist() == [0, 0]


def test_the_names_mean_the_functions():
    assert list(ESTIMATORS.items()) == [("k1", k1), ("k2", k2), ("k3", k3)]


def test_k1_and_k3_are_unbiased_and_k2_is_not():
    """Σ_a π_θ(a) k(a) against KL(π_θ‖π_ref), by enumeration."""
    logits, ref_logp = policies()
    logp = logits.detach().log_softmax(-1)
    exact = kl(logp, ref_logp)
    mean = {name: logp.exp() @ k(logp, ref_logp) for name, k in ESTIMATORS.items()}
    assert_close(mean["k1"], exact, rtol=0, atol=1e-14)
    assert_close(mean["k3"], exact, rtol=0, atol=1e-14)
    assert abs(mean["k2"] - exact) > 0.01
    assert abs(kl(ref_logp, logp) - exact) > 0.01  # the two directions do differ


def test_k3_varies_less_than_k1_close_to_the_reference():
    """Close by, k3 ≈ d²/2 while k1 ≈ d; far away, e^−d takes over and k3 is worse."""
    logits, ref_logp = policies()

    def variance(k, logp):
        value = k(logp, ref_logp)
        return logp.exp() @ (value - logp.exp() @ value) ** 2

    far = logits.detach().log_softmax(-1)
    close = (0.9 * ref_logp + 0.1 * far).log_softmax(-1)
    assert variance(k3, close) < 0.1 * variance(k1, close)
    assert variance(k3, far) > variance(k1, far)


def test_gradients_as_a_loss_on_policy():
    """The sample is drawn, then k differentiated: Σ_a sg[π_θ(a)] ∇k(a).

    E∇k1 = 0, E∇k2 = ∇KL(π_θ‖π_ref), E∇k3 = ∇KL(π_ref‖π_θ).
    """
    logits, ref_logp = policies()
    logp = logits.log_softmax(-1)
    slope = {
        name: grad(logp.exp().detach() @ k(logp, ref_logp), logits, retain_graph=True)[
            0
        ]
        for name, k in ESTIMATORS.items()
    }
    (forward,) = grad(kl(logp, ref_logp), logits, retain_graph=True)
    (backward,) = grad(kl(ref_logp, logp), logits)
    assert_close(slope["k1"], torch.zeros(4), rtol=0, atol=1e-15)
    assert_close(slope["k2"], forward, rtol=0, atol=1e-15)
    assert_close(slope["k3"], backward, rtol=0, atol=1e-15)
    assert (forward - backward).abs().max() > 0.05  # the two directions do differ


def test_k1_in_the_reward_is_right():
    """Σ_a π_θ(a) ∇log π_θ(a) k1(a) = ∇KL(π_θ‖π_ref): why RLHF may use k1."""
    logits, ref_logp = policies()
    logp = logits.log_softmax(-1)
    (exact,) = grad(kl(logp, ref_logp), logits, retain_graph=True)
    constant = (logp.exp() * k1(logp, ref_logp)).detach()
    (score_function,) = grad(constant @ logp, logits)
    assert_close(score_function, exact, rtol=0, atol=1e-15)


def test_off_policy_the_estimates_need_the_ratio():
    logits, ref_logp = policies()
    logp, old_logp = logits.detach().log_softmax(-1), tensor([0.1, 0.2, 0.3, 0.4]).log()
    exact, ratio = kl(logp, ref_logp), (logp - old_logp).exp()
    for k in (k1, k3):
        value = k(logp, ref_logp)
        assert_close(old_logp.exp() @ (ratio * value), exact, rtol=0, atol=1e-14)
        assert abs(old_logp.exp() @ value - exact) > 0.01


@given(st.floats(-18, 18))
def test_k3_is_never_negative_and_is_flat_only_at_equality(d):
    """∂k3/∂logp = 1 − e^−d has the sign of d. (Negative: by rounding alone.)"""
    logp = tensor(d, requires_grad=True)
    value = k3(logp, tensor(0.0))
    (slope,) = grad(value, logp)
    assert value >= -1e-15 * abs(d)
    assert_close(slope, 1 - (-logp.detach()).exp())
    assert abs(d) < 1e-15 or slope * d > 0


@pytest.mark.parametrize("d", [1e-3, -1e-3, 1e-4, -1e-4, 1e-5])
def test_k3_keeps_its_digits_in_float32(d):
    """Close to π_ref, k3 ≈ d²/2; e^−d − 1 + d in this order would lose it all."""
    value = k3(tensor(d, dtype=torch.float32), tensor(0.0, dtype=torch.float32))
    assert value.item() == pytest.approx(d**2 / 2, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("d", [50.0, -50.0, 200.0, -200.0])
def test_k3_is_held_at_the_limit_without_a_gradient(d, dtype):
    logp = tensor([d], dtype=dtype, requires_grad=True)
    value = k3(logp, torch.zeros(1, dtype=dtype))
    (slope,) = grad(value.sum(), logp)
    expected = 19.0 if d > 0 else math.exp(20) - 21  # e^∓20 − 1 ± 20
    assert value.double().item() == pytest.approx(expected, rel=0.01)
    assert slope.item() == 0


# KL in the reward


def test_token_rewards_by_hand():
    """β = 0.1, log-ratios 0.5, −0.2 and 1.0, scores 1 and −1."""
    logp = tensor([[-1.0, -2.0, 0.0], [-3.0, 0.0, 0.0]])
    ref_logp = tensor([[-1.5, -1.8, 9.0], [-4.0, 9.0, 9.0]])
    mask = tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    rewards = token_rewards(tensor([1.0, -1.0]), logp, ref_logp, mask, beta=0.1)
    # −0.1 · 0.5;  −0.1 · (−0.2) + 1;  padding 0   |   −0.1 · 1.0 − 1;  padding 0
    assert_close(rewards, tensor([[-0.05, 1.02, 0.0], [-1.1, 0.0, 0.0]]))


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    beta=st.floats(0, 2),
    seed=st.integers(0, 1000),
)
def test_token_rewards_sum_to_score_minus_beta_kl(lengths, beta, seed):
    """Σ_t r_t = score − β Σ_t k1; an empty row gets nothing; padding may be NaN."""
    generator = torch.Generator().manual_seed(seed)
    logp, ref_logp = torch.randn(2, len(lengths), 5, generator=generator)
    scores = torch.randn(len(lengths), generator=generator)
    mask = (torch.arange(5) < tensor(lengths)[:, None]).double()
    penalty = beta * ((logp - ref_logp) * mask).sum(-1)
    nan = torch.where(mask.bool(), 0.0, math.nan)
    rewards = token_rewards(scores, logp + nan, ref_logp + nan, mask, beta)
    expected = torch.where(tensor(lengths) > 0, scores - penalty, 0.0)
    assert_close(rewards.sum(-1), expected, rtol=0, atol=1e-12)
    assert_close(rewards * (1 - mask), torch.zeros_like(mask), rtol=0, atol=0)
    no_kl = token_rewards(scores, logp, ref_logp, mask, beta=0.0)
    for row, length in enumerate(lengths):
        expected_row = [0.0] * 5
        if length:
            expected_row[length - 1] = scores[row].item()
        assert no_kl[row].tolist() == expected_row


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_token_rewards_take_int_and_bool_masks(dtype):
    mask = tensor([[1, 1, 0]]).to(dtype)
    zero = torch.zeros(1, 3)
    assert token_rewards(tensor([2.0]), zero, zero, mask, 0.1).tolist() == [[0, 2, 0]]


def test_token_rewards_are_constants():
    logp, ref_logp = (torch.zeros(1, 2, requires_grad=True) for _ in range(2))
    scores = tensor([1.0], requires_grad=True)
    rewards = token_rewards(scores, logp, ref_logp, torch.ones(1, 2), beta=0.1)
    assert not rewards.requires_grad
