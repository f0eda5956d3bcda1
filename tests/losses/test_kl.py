"""Every KL estimator as a value and as a loss, by enumeration; KL in the reward."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl.kl import ESTIMATORS, k1, k2, k3, k3_plus, token_rewards, unbiased_k3

pytestmark = pytest.mark.usefixtures("float64")


def policies():
    """Logits of π_θ (a leaf) and log-probs of π_ref, over four tokens."""
    logits = tensor([0.5, -1.0, 0.2, 1.3], requires_grad=True)
    return logits, tensor([0.0, 0.4, -0.9, 0.8]).log_softmax(-1)


def stale():
    """Log-probs of π_old, far from π_θ."""
    return tensor([0.1, 0.2, 0.3, 0.4]).log()


def kl(p_log, q_log):
    return (p_log.exp() * (p_log - q_log)).sum()


def means(logp, ref_logp, old_logp):
    """Σ_a π_old(a) k(a) of every estimator: the sample is drawn, then k is computed."""
    return {
        name: old_logp.detach().exp() @ k(logp, ref_logp, old_logp)
        for name, k in ESTIMATORS.items()
    }


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
    same = tensor([-0.1, -7.0])
    for estimate in ESTIMATORS.values():
        assert estimate(same, same, tensor([-2.0, -3.0])).tolist() == [0, 0]


def test_the_names_mean_the_functions():
    logp, ref_logp, old_logp = (x * tensor([0.3, 2.0]) for x in (-1.0, -1.6, -0.4))
    found = {name: k(logp, ref_logp, old_logp) for name, k in ESTIMATORS.items()}
    expected = {
        "k1": k1(logp, ref_logp),
        "k2": k2(logp, ref_logp),
        "k3": k3(logp, ref_logp),
        "k3+": k3_plus(logp, ref_logp),
        "unbiased_k3": unbiased_k3(logp, ref_logp, old_logp),
    }
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_on_policy_all_are_unbiased_but_k2():
    """Σ_a π_θ(a) k(a) against KL(π_θ‖π_ref), by enumeration."""
    logits, ref_logp = policies()
    logp = logits.detach().log_softmax(-1)
    exact = kl(logp, ref_logp)
    mean = means(logp, ref_logp, old_logp=logp)
    for name in ("k1", "k3", "k3+", "unbiased_k3"):
        assert_close(mean[name], exact, rtol=0, atol=1e-14)
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


def slopes(logits, ref_logp, old_logp):
    """The gradient of every estimator's mean under π_old, which is held constant."""
    logp = logits.log_softmax(-1)
    return {
        name: grad(mean, logits, retain_graph=True)[0]
        for name, mean in means(logp, ref_logp, old_logp).items()
    }


def both_directions(logits, ref_logp):
    """∇KL(π_θ‖π_ref) and ∇KL(π_ref‖π_θ)."""
    logp = logits.log_softmax(-1)
    (forward,) = grad(kl(logp, ref_logp), logits, retain_graph=True)
    (backward,) = grad(kl(ref_logp, logp), logits)
    assert (forward - backward).abs().max() > 0.05  # the two do differ
    return forward, backward


def test_gradients_as_a_loss_on_policy():
    """E∇k1 = 0; k2, k3+ and unbiased k3: ∇KL(π_θ‖π_ref); k3: ∇KL(π_ref‖π_θ)."""
    logits, ref_logp = policies()
    forward, backward = both_directions(logits, ref_logp)
    found = slopes(logits, ref_logp, logits.log_softmax(-1).detach())
    expected = {"k1": torch.zeros(4), "k3": backward}
    for name, slope in found.items():
        assert_close(slope, expected.get(name, forward), rtol=0, atol=1e-15)


def test_off_policy_only_unbiased_k3_is_the_kl_in_value_and_gradient():
    """Σ_a π_old(a) (π_θ/π_old)(a) k3(a) = KL(π_θ‖π_ref) for every θ, so ∇ too."""
    logits, ref_logp = policies()
    forward, _ = both_directions(logits, ref_logp)
    logp = logits.detach().log_softmax(-1)
    mean, slope = means(logp, ref_logp, stale()), slopes(logits, ref_logp, stale())
    assert_close(mean["unbiased_k3"], kl(logp, ref_logp), rtol=0, atol=1e-15)
    assert_close(slope["unbiased_k3"], forward, rtol=0, atol=1e-15)
    for name in ("k1", "k2", "k3", "k3+"):
        assert (slope[name] - forward).abs().max() > 0.05, name


def test_unbiased_k3_by_hand():
    """π_θ = ½, π_ref = ¼, π_old = ⅛: r = 4, k3 = log 2 − ½; ∇ = r k3 + r (1 − ½)."""
    logp = tensor(0.5).log().requires_grad_()
    old_logp = tensor(0.125).log().requires_grad_()
    value = unbiased_k3(logp, tensor(0.25).log(), old_logp)
    assert value.item() == pytest.approx(4 * (math.log(2) - 0.5), abs=1e-14)
    value.backward()
    assert logp.grad.item() == pytest.approx(4 * math.log(2), abs=1e-14)
    assert old_logp.grad is None  # π_old is a constant


@given(st.floats(-15, 15))
def test_k3_plus_has_the_value_of_k3_and_the_gradient_of_k2(d):
    logp = tensor([d], requires_grad=True)
    values = [k(logp, torch.zeros(1)) for k in (k3_plus, k3, k2)]
    own, of_k3, of_k2 = ((v.detach(), grad(v.sum(), logp)[0]) for v in values)
    # k3 + k2 − k2, in this order, rounds to the last bit of k2 ≤ 113
    assert_close(own[0], of_k3[0], rtol=1e-15, atol=1e-13)
    assert torch.equal(own[1], of_k2[1])
    assert abs(d) < 0.1 or (of_k3[1] - of_k2[1]).abs() > 1e-3  # they do differ


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
    logp, old_logp = logits.detach().log_softmax(-1), stale()
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


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("d", [50.0, -50.0, 200.0, -200.0])
def test_no_estimator_overflows(name, d, dtype):
    """Value and gradient stay finite at any distance, from π_ref and from π_old."""
    logp = tensor([d], dtype=dtype, requires_grad=True)
    for old in (-d, 0.0, d):
        zero, old_logp = torch.zeros(1, dtype=dtype), tensor([old], dtype=dtype)
        value = ESTIMATORS[name](logp, zero, old_logp)
        assert value.isfinite().all()
        assert grad(value.sum(), logp)[0].isfinite().all()


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


def test_token_rewards_step_over_holes_in_the_mask():
    """1 1 0 0 1 1: the same tokens without holes; the score at the last of them."""
    logp = tensor([[-1.0, -2.0, 5.0, math.nan, -0.5, -3.0]])
    ref_logp = tensor([[-1.5, -1.8, 7.0, 1.0, -0.5, -2.0]])
    mask = tensor([[1.0, 1.0, 0.0, 0.0, 1.0, 1.0]])
    rewards = token_rewards(tensor([1.0]), logp, ref_logp, mask, beta=0.1)
    # −0.1 · 0.5;  0.1 · 0.2;  holes 0;  −0.1 · 0;  0.1 · 1.0 + 1
    assert_close(rewards, tensor([[-0.05, 0.02, 0.0, 0.0, 0.0, 1.1]]))
    here = mask.bool()
    dense = [x[here][None] for x in (logp, ref_logp, mask)]
    without = token_rewards(tensor([1.0]), *dense, beta=0.1)
    assert torch.equal(rewards[here], without[0])
    # and where the response ends in a hole
    cut = tensor([[1.0, 1.0, 0.0, 0.0, 1.0, 0.0]])
    ends = token_rewards(tensor([1.0]), logp, ref_logp, cut, beta=0.0)
    assert ends.tolist() == [[0, 0, 0, 0, 1, 0]]


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
