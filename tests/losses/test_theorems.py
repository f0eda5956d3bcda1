"""What the course proves, on numbers: bounds, their tightness, what they omit."""

import math

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from refimpl.advantages import group_centred, group_relative
from refimpl.algorithms import ALGORITHMS
from refimpl.importance import ratio, sequence_log_ratio

pytestmark = pytest.mark.usefixtures("float64")
GMPO, GRPO = ALGORITHMS["gmpo"], ALGORITHMS["grpo"]


def gate(z, tau):
    """g_τ(z) = sech²(τ z / 2): SAPO's gate in the log-ratio (assumption A1)."""
    return 1 / torch.cosh(tau * z / 2) ** 2


def random_responses(cases=20_000, seed=0):
    """Log-ratios of responses of 2 to 12 tokens, as rows with a mask, and a τ each.

    Half are two-valued, where a second-order bound is nearly attained.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(*shape, generator=generator)

    length = torch.randint(2, 13, (cases, 1), generator=generator)
    mask = (torch.arange(12) < length).double()
    scale = 10 ** uniform(-3, 0.5, cases, 1)
    centre = uniform(-1, 1, cases, 1) * uniform(0, 1, cases, 1).round()
    noise = torch.randn(cases, 12, generator=generator)
    signs = torch.ones(12)
    signs[1::2] = -1
    two = torch.arange(cases)[:, None] % 2 == 0
    z = (centre + scale * torch.where(two, signs, noise)) * mask
    return z, mask, 10 ** uniform(-0.5, 1.3, cases, 1)


# A1 and A2: a soft gate on tokens is nearly one on the response


def test_the_mean_gate_differs_from_the_gate_of_the_mean_by_the_variance_at_most():
    """|(1/T) Σ g_τ(z_t) − g_τ(log s)| ≤ (τ²/4) Var z, and it is tight.

    sup |g''| = τ²/2, and the first-order term of a mean vanishes.
    """
    z, mask, tau = random_responses()
    count = mask.sum(-1, keepdim=True)
    mean = sequence_log_ratio(z, mask)[:, None]
    variance = ((z - mean) ** 2 * mask).sum(-1, keepdim=True) / count
    gap = ((gate(z, tau) * mask).sum(-1, keepdim=True) / count - gate(mean, tau)).abs()
    bound = tau**2 / 4 * variance
    used = gap / bound
    assert (gap <= bound * (1 + 1e-9) + 1e-15).all()
    assert used[bound > 1e-9].max() > 0.99
    half = tau**2 / 8 * variance  # a constant half as large would be too small
    assert (gap > half).any()


def test_the_supremum_of_the_gates_second_derivative():
    """|g''| ≤ τ²/2, at z = 0; |g'| ≤ 2τ/(3√3)."""
    z = torch.linspace(-20, 20, 400_001, requires_grad=True)
    for tau in (0.5, 1.0, 8.8):
        (first,) = torch.autograd.grad(gate(z, tau).sum(), z, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), z)
        assert second.abs().max().item() == pytest.approx(tau**2 / 2, rel=1e-6)
        top = 2 * tau / (3 * math.sqrt(3))
        assert first.abs().max().item() == pytest.approx(top, rel=1e-6)


def test_the_gate_in_the_ratio_is_not_the_gate_in_the_log_ratio():
    """A1's error: sech²(τ(r−1)/2) against sech²(τ log r / 2)."""
    r = tensor([0.5, 0.9, 1.1, 2.0])
    error = (gate(r - 1, 8.8) - gate(r.log(), 8.8)).abs()
    assert error[1:3].max() < 0.03 < error[0]
    assert gate(tensor(1.0), 8.8) < gate(tensor(2.0).log(), 8.8) / 3


def test_the_gated_gradient_differs_by_the_root_of_the_variance():
    """The bound is on the mean gate. Weighed by scores, a first-order term is left.

    With scores ±1 that follow the sign of z_t − μ, the difference of
    (1/T) Σ g(z_t) s_t and g(μ) (1/T) Σ s_t is |g'(μ)| √Var: far above (τ²/4) Var, and
    within sup|g'| √Var RMS(s).
    """
    tau, mu, spread = 8.8, 0.15, 1e-3
    score = tensor([1.0, -1.0] * 8)
    z = mu + spread * score
    gap = ((gate(z, tau) * score).mean() - gate(tensor(mu), tau) * score.mean()).abs()
    root, steepest = spread, 2 * tau / (3 * math.sqrt(3))
    assert gap > 100 * tau**2 / 4 * spread**2
    assert gap <= steepest * root * (score**2).mean().sqrt()
    assert gap > 0.9 * steepest * root  # μ sits near the steepest point


def test_the_root_variance_bound_holds_for_any_scores():
    z, mask, tau = random_responses(cases=5000, seed=1)
    scores = torch.randn(z.shape, generator=torch.Generator().manual_seed(2)) * mask
    count = mask.sum(-1, keepdim=True)

    def mean(x):
        return (x * mask).sum(-1, keepdim=True) / count

    mu = mean(z)
    gap = (mean(gate(z, tau) * scores) - gate(mu, tau) * mean(scores)).abs()
    root = mean((z - mu) ** 2).sqrt()
    bound = 2 * tau / (3 * math.sqrt(3)) * root * mean(scores**2).sqrt()
    assert (gap <= bound * (1 + 1e-9) + 1e-15).all()


# Geometric and arithmetic means


def objective(algorithm, ratios, advantages, **settings):
    logp = tensor(ratios).log()
    zero, mask = torch.zeros_like(logp), torch.ones_like(logp)
    loss = algorithm.policy_loss(logp, zero, tensor(advantages), mask, **settings).loss
    return -loss.item()


WIDE = {"epsilon_low": 1.0, "epsilon_high": 99.0}


def test_gmpos_objective_is_not_bounded_by_grpos():
    """The printed |J*_GMPO| ≤ |J*_GRPO| fails: the responses' signs may cancel."""
    ratios, advantages = [[2.0, 0.5], [1.25, 1.25]], [1.0, -1.0]
    grpo = objective(GRPO, ratios, advantages, **WIDE)
    gmpo = objective(GMPO, ratios, advantages, epsilon_low=99.0, epsilon_high=99.0)
    assert grpo == pytest.approx(0, abs=1e-12)
    assert gmpo == pytest.approx(-0.125, abs=1e-12)


def test_the_sum_of_absolute_values_is_bounded():
    """AM–GM holds for each response."""
    z = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
    geometric = ratio(sequence_log_ratio(z, torch.ones_like(z)))
    assert (geometric <= ratio(z).mean(-1)).all()


# The std and difficulty


def test_the_std_boosts_near_extreme_groups_but_never_above_even_ones():
    """The boost 1/√(p(1−p)) grows towards the ends; the weight √(p(1−p)) falls."""
    size, group = 16, torch.zeros(16, dtype=torch.long)
    totals, boosts = [], []
    for k in range(1, 9):
        rewards = (torch.arange(size) < k).double()
        relative = group_relative(rewards, group).abs().sum().item()
        totals.append(relative)
        boosts.append(relative / group_centred(rewards, group).abs().sum().item())
    assert totals == sorted(totals)
    assert boosts == sorted(boosts, reverse=True)


# Logit gradients


@pytest.mark.parametrize("a", [1.0, -1.0])
def test_where_a_token_pushes_mass(a):
    """∇_logits (A log π(y)) = A (1[v = y] − π(v)): all other tokens share the rest."""
    logits = tensor([2.0, 0.5, -1.0, 0.0], requires_grad=True)
    pi = logits.softmax(-1)
    (slope,) = torch.autograd.grad(a * logits.log_softmax(-1)[1], logits)
    assert_close(slope, a * (tensor([0.0, 1, 0, 0]) - pi.detach()))
