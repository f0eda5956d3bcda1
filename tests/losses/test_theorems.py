"""What the course proves, on numbers: the policy gradient by enumeration, means, and
the std."""

import itertools
import math

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl.advantages import Scored, group_centred, group_relative, leave_one_out
from refimpl.algorithms import ALGORITHMS
from tests.losses.batches import EXACT, WIDE, at_ratios, loss_of

pytestmark = pytest.mark.usefixtures("float64")
GMPO, GRPO, REINFORCE = (ALGORITHMS[name] for name in ("gmpo", "grpo", "reinforce"))


# The policy gradient theorem, by enumeration of one categorical


def expected_gradient(sampling, logits, advantages, **settings):
    """∇ of Σ_a sampling(a) · REINFORCE's objective at a: one row for each action."""
    logp = logits.log_softmax(-1)[:, None]
    weighted = len(logits) * sampling * advantages  # B cancels the mean over rows
    batch = (logp, sampling.log()[:, None], weighted, torch.ones(len(logits), 1))
    return grad(-loss_of(REINFORCE, *batch, **settings), logits)[0]


def categorical():
    """Logits, their policy, rewards, and ∇J = π (R − J) in closed form."""
    logits = tensor([0.3, -0.5, 1.0, 0.0], requires_grad=True)
    policy, rewards = logits.detach().softmax(-1), tensor([1.0, 0.0, 0.3, -2.0])
    return logits, policy, rewards, policy * (rewards - policy @ rewards)


def test_the_score_function_gives_the_gradient_of_the_expected_reward():
    """And a baseline adds no bias, unless it sees the action."""
    logits, policy, rewards, exact = categorical()
    assert_close(grad(logits.softmax(-1) @ rewards, logits)[0], exact, **EXACT)
    for baseline in (0.0, -3.0, 0.7, 1e4):
        estimate = expected_gradient(policy, logits, rewards - baseline)
        assert_close(estimate, exact, rtol=0, atol=1e-11)
    seeing = expected_gradient(policy, logits, rewards - tensor([0.5, 0, 0, 0]))
    # −b_0 π_0 ∇log π(0) = −½ π_0 (1[v=0] − π_v)
    bias = -0.5 * policy[0] * (tensor([1.0, 0, 0, 0]) - policy)
    assert_close(seeing - exact, bias, **EXACT)


def test_stale_data_bias_reinforce_unless_it_is_corrected():
    logits, _, rewards, exact = categorical()
    stale = tensor([0.4, 0.1, 0.2, 0.3])
    corrected = expected_gradient(stale, logits, rewards, correct=True)
    assert_close(corrected, exact, **EXACT)
    plain = expected_gradient(stale, logits, rewards)
    assert (plain - exact).abs().max() > 0.1


def test_reward_to_go_is_as_unbiased_as_the_whole_return():
    """Two tokens: what was paid before a token does not depend on it.

    Rewards r₁(a₁) and r₂(a₁, a₂), all 3 · 3 responses enumerated.
    """
    logits = tensor([[0.1, -0.4, 0.6], [0.3, 0.2, -0.9]], requires_grad=True)
    first, second = torch.cartesian_prod(torch.arange(3), torch.arange(3)).T
    table = logits.log_softmax(-1)
    logp = torch.stack([table[0, first], table[1, second]], 1)
    chance = logp.sum(-1).exp()
    r1 = tensor([1.0, -1.0, 0.5])[first]
    r2 = tensor([0.0, 2.0, -1.0])[first * second % 3]
    (exact,) = grad(chance @ (r1 + r2), logits, retain_graph=True)
    chance = chance.detach()[:, None]
    for to_go in (torch.stack([r1 + r2, r1 + r2], 1), torch.stack([r1 + r2, r2], 1)):
        # 9 rows of 2 tokens: the mean divides by 18
        batch = (logp, logp.detach(), 18 * chance * to_go, torch.ones(9, 2))
        estimate = grad(-loss_of(REINFORCE, *batch), logits, retain_graph=True)[0]
        assert_close(estimate, exact, **EXACT)


@pytest.mark.parametrize(
    ("function", "share"), [(leave_one_out, 1), (group_centred, 2 / 3)]
)
def test_leave_one_out_is_unbiased_and_the_group_mean_rescales(function, share):
    """E[(1/G) Σ A_i ∇log π(a_i)] = ∇J, or (G−1)/G · ∇J: all 3³ groups of three."""
    policy, rewards = tensor([0.2, 0.5, 0.3]), tensor([1.0, 0.0, 0.4])
    estimate, group = torch.zeros(3), torch.zeros(3, dtype=torch.long)
    for drawn in itertools.product(range(3), repeat=3):
        actions = tensor(drawn)
        a = function(Scored(rewards[actions], group))
        grad_logp = torch.eye(3)[actions] - policy  # ∂log π(a)/∂logit_v
        estimate += policy[actions].prod() * (a[:, None] * grad_logp).mean(0)
    exact = policy * (rewards - policy @ rewards)
    assert_close(estimate, share * exact, **EXACT)


# Geometric and arithmetic means


def test_gmpos_objective_is_not_bounded_by_grpos():
    """The printed |J*_GMPO| ≤ |J*_GRPO| fails: the responses' signs may cancel."""
    batch = [[2.0, 0.5], [1.25, 1.25]], [1.0, -1.0]
    grpo, gmpo = at_ratios(GRPO, *batch, **WIDE), at_ratios(GMPO, *batch, epsilon=99.0)
    assert -grpo[0].item() == pytest.approx(0, abs=1e-12)
    assert -gmpo[0].item() == pytest.approx(-0.125, abs=1e-12)


# The std and difficulty


@pytest.mark.parametrize("size", [2, 7, 16])
def test_the_std_boosts_near_extreme_groups_but_never_above_even_ones(size):
    """Of k right answers Σ|Ã| = 2k(G−k)/G and, with ddof 1, Σ|Â| is
    2 √(k(G−k)(G−1)/G): their quotient grows towards the ends, the weight falls to 0."""
    group, totals, boosts = torch.zeros(size, dtype=torch.long), [], []
    for k in range(size // 2 + 1):
        scored = Scored((torch.arange(size) < k).double(), group)
        centred = group_centred(scored).abs().sum().item()
        assert centred == pytest.approx(2 * k * (size - k) / size)
        totals.append(group_relative(scored, eps=1e-12).abs().sum().item())
        spread = k * (size - k) * (size - 1) / size
        assert totals[-1] == pytest.approx(2 * math.sqrt(spread))
        boosts += [totals[-1] / centred] if k else []
    assert totals == sorted(totals) and totals[0] == 0
    assert boosts == sorted(boosts, reverse=True)
