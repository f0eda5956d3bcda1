"""Every loss: hand values, closed-form gradients, identities, invariance, errors.

Tests over `ALGORITHMS` hold for any method; the rest name theirs.
"""

import inspect
import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.autograd import grad, gradcheck
from torch.testing import assert_close

from refimpl import normalisers
from refimpl.advantages import gae, group_centred, group_relative, leave_one_out
from refimpl.algorithms import ALGORITHMS, Objective, get, value_loss
from refimpl.importance import truncated_weight
from refimpl.normalisers import NORMALISERS, constant, seq_mean_token_mean, token_mean

pytestmark = pytest.mark.usefixtures("float64")
every = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
clipped = pytest.mark.parametrize("name", ["ppo", "grpo"])
REINFORCE, PPO, GRPO = (ALGORITHMS[n] for n in ("reinforce", "ppo", "grpo"))
NAN, INF = math.nan, math.inf


def mask_of(lengths, width=None):
    width = max(lengths) if width is None else width
    return (torch.arange(width) < tensor(lengths)[:, None]).double()


def random_batch(lengths, seed=0, spread=0.4):
    """`logp` (a leaf), `old_logp`, advantages (B, T) and the mask."""
    generator = torch.Generator().manual_seed(seed)
    mask = mask_of(lengths)
    noise = torch.randn(3, *mask.shape, generator=generator)
    old_logp = -noise[0].abs() - 0.1
    logp = (old_logp + spread * noise[1]).requires_grad_()
    return logp, old_logp, noise[2], mask


def loss_of(algorithm, logp, old_logp, advantages, mask, weight=None, **settings):
    """The loss with the paper's own normaliser; Dr. GRPO's constant is 50."""
    if weight is None and algorithm.normaliser is constant:
        weight = constant(mask, 50)
    batch = (logp, old_logp, advantages, mask, weight)
    return algorithm.policy_loss(*batch, **settings).loss


def weight_by(name, mask, group=None):
    """Any of the four normalisers: one group if none are given, and 50 tokens."""
    group = torch.zeros(len(mask), dtype=torch.long) if group is None else group
    return normalisers.apply(NORMALISERS[name], mask, group=group, max_length=50)


def one_token(algorithm, advantage, ratio, **settings):
    """(objective, its gradient in log π_θ) at one token."""
    logp = tensor([[math.log(ratio)]], requires_grad=True)
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    batch = (logp, zero, tensor([advantage]), one)
    objective = -loss_of(algorithm, *batch, weight=one, **settings)
    return objective.item(), grad(objective, logp)[0].item()


# Hand-computed losses


def test_reinforce_by_hand():
    """Log-probs (−1, −2) with A = 2 and −3 with A = −1."""
    logp = tensor([[-1.0, -2.0], [-3.0, 0.0]], requires_grad=True)
    old_logp = logp.detach() - 0.5
    mask, a = mask_of([2, 1]), tensor([2.0, -1.0])
    loss = REINFORCE.policy_loss(logp, old_logp, a, mask).loss
    # rows: (2·(−1) + 2·(−2))/2 = −3 and (−1)·(−3) = 3; −(−3 + 3)/2 = 0
    assert loss.item() == 0
    # −A/(B |o|): −2/4, −2/4 and +1/2
    assert grad(loss, logp)[0].tolist() == [[-0.5, -0.5], [0.5, 0.0]]
    by_token = REINFORCE.policy_loss(logp, old_logp, a, mask, token_mean(mask))
    # −(−2 − 4 + 3)/3 = 1
    assert by_token.loss.item() == pytest.approx(1, abs=1e-15)


def test_corrected_reinforce_by_hand():
    """Ratios 2, ½ with A = 2 and 4 with A = −1, no clip."""
    ratios = tensor([[2.0, 0.5], [4.0, 1.0]])
    logp = ratios.log().requires_grad_()
    mask, a = mask_of([2, 1]), tensor([2.0, -1.0])
    loss = REINFORCE.policy_loss(logp, torch.zeros(2, 2), a, mask, correct=True).loss
    # −½ [ (2·2 + 2·½)/2 + (−1·4) ] = −½ (2.5 − 4) = 0.75
    assert loss.item() == pytest.approx(0.75, abs=1e-15)
    # −r A/(B |o|): −4/4, −1/4, +4/2
    assert_close(grad(loss, logp)[0], tensor([[-1.0, -0.25], [2.0, 0.0]]))


@pytest.mark.parametrize(
    ("name", "expected", "weight"),
    [
        # PPO, mean over tokens: −(1.2 + 0.9 − 1.3)/3
        ("ppo", -0.8 / 3, [1 / 3, 1 / 3]),
        # GRPO, mean of the rows' means: −((1.2 + 0.9)/2 − 1.3)/2
        ("grpo", 0.125, [1 / 4, 1 / 2]),
    ],
)
def test_ppo_and_grpo_by_hand(name, expected, weight):
    """Ratios 1.5, 0.9 with A = 1 and 1.3 with A = −1; ε = 0.2; lengths 2 and 1.

    Objectives: min(1.5, 1.2) = 1.2, min(0.9, 0.9) = 0.9, min(−1.3, −1.2) = −1.3.
    """
    logp = tensor([[1.5, 0.9], [1.3, 1.0]]).log().requires_grad_()
    mask, a = mask_of([2, 1]), tensor([1.0, -1.0])
    loss = ALGORITHMS[name].policy_loss(logp, torch.zeros(2, 2), a, mask).loss
    assert loss.item() == pytest.approx(expected, abs=1e-15)
    # −A r × the token's weight, and 0 where the clip bit
    slope = tensor([[0.0, -0.9 * weight[0]], [1.3 * weight[1], 0.0]])
    assert_close(grad(loss, logp)[0], slope)


SIX_CASES = [  # A, r, objective, gradient in log π_θ; ε_low = 0.2, ε_high = 0.3
    (+1.0, 0.5, 0.5, 0.5),  # a good token fell: let it rise again
    (+1.0, 1.25, 1.25, 1.25),
    (+1.0, 1.5, 1.3, 0.0),  # it rose enough: no reward for more
    (-1.0, 0.5, -0.8, 0.0),  # a bad token fell enough
    (-1.0, 1.25, -1.25, -1.25),
    (-1.0, 1.5, -1.5, -1.5),  # a bad token rose: push it down, with all of r
]


@clipped
@pytest.mark.parametrize(("a", "r", "objective", "slope"), SIX_CASES)
def test_clip_in_each_of_the_six_cases(name, a, r, objective, slope):
    bounds = {"epsilon_low": 0.2, "epsilon_high": 0.3}
    value, gradient = one_token(ALGORITHMS[name], a, r, **bounds)
    assert value == pytest.approx(objective, abs=1e-14)
    assert gradient == pytest.approx(slope, abs=1e-14)


@clipped
@pytest.mark.parametrize(("a", "z"), [(+1.0, 0.4), (-1.0, -0.4)])
def test_a_ratio_exactly_on_the_bound_still_has_its_gradient(name, a, z):
    """The closed form says r ≤ 1 + ε and r ≥ 1 − ε."""
    logp = tensor([[z]], requires_grad=True)
    r = logp.detach().exp().item()
    epsilon = abs(r - 1)
    assert 1 + math.copysign(epsilon, z) == r
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    loss = loss_of(ALGORITHMS[name], logp, zero, tensor([a]), one, epsilon=epsilon)
    assert grad(loss, logp)[0].item() == -a * r


@clipped
@pytest.mark.parametrize(
    ("a", "r", "objective", "slope"),
    [
        (-1.0, 2.9, -2.9, -2.9),  # below c: as before
        (-1.0, 5.0, -3.0, 0.0),  # max(min(−5, −1.2), −3) = −3
        (-2.0, 5.0, -6.0, 0.0),
        (-1.0, 0.5, -0.8, 0.0),
        (+1.0, 5.0, 1.2, 0.0),  # A > 0 is left alone
        (+1.0, 0.1, 0.1, 0.1),
    ],
)
def test_dual_clip_floors_the_objective_at_c_times_a(name, a, r, objective, slope):
    value, gradient = one_token(ALGORITHMS[name], a, r, dual_clip=3.0)
    assert value == pytest.approx(objective, abs=1e-14)
    assert gradient == pytest.approx(slope, abs=1e-14)


def test_dual_clip_is_off_by_default():
    assert one_token(PPO, -1.0, 5.0) == pytest.approx((-5.0, -5.0))


@pytest.mark.parametrize(
    ("bounds", "lowest", "highest"),
    [
        ({"epsilon": 0.1}, 0.9, 1.1),
        ({"epsilon": 0.1, "epsilon_low": 0.4}, 0.6, 1.1),
        ({"epsilon": 0.1, "epsilon_high": 0.4}, 0.9, 1.4),
        ({"epsilon_low": 0.3, "epsilon_high": 0.4}, 0.7, 1.4),
        ({}, 0.8, 1.2),
    ],
)
def test_epsilon_stands_in_for_the_side_not_given(bounds, lowest, highest):
    assert one_token(PPO, -1.0, 0.5, **bounds)[0] == pytest.approx(-lowest)
    assert one_token(PPO, 1.0, 2.0, **bounds)[0] == pytest.approx(highest)


def test_epsilon_low_of_one_means_no_lower_bound():
    """max(r, 0) never binds: A < 0 keeps its gradient however small r is."""
    assert one_token(PPO, -1.0, 0.01, epsilon_low=1.0) == pytest.approx((-0.01, -0.01))


# Closed-form gradients


@clipped
@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_clipped_gradient_is_the_closed_form(name, normaliser):
    """∂/∂logp = weight · A r 1[(A>0, r ≤ 1+ε_high) or (A≤0, r ≥ 1−ε_low)]."""
    lengths, low, high = [7, 30, 1, 20], 0.2, 0.3
    logp, old_logp, a, mask = random_batch(lengths)
    r = (logp.detach() - old_logp).exp()
    active = torch.where(a > 0, r <= 1 + high, r >= 1 - low)
    weight = {
        "seq_mean_token_mean": 1 / (4 * tensor(lengths)[:, None]),
        "group_token_mean": tensor([1 / (2 * 37)] * 2 + [1 / (2 * 21)] * 2)[:, None],
        "token_mean": 1 / 58,
        "constant": 1 / (4 * 50),
    }[normaliser]
    loss = loss_of(
        ALGORITHMS[name],
        *(logp, old_logp, a, mask),
        weight=weight_by(normaliser, mask, tensor([0, 0, 1, 1])),
        epsilon_low=low,
        epsilon_high=high,
    )
    expected = -a * r * active * mask * weight
    assert_close(grad(loss, logp)[0], expected, rtol=0, atol=1e-10)
    below, above = r < 1 - low, r > 1 + high
    for sign in (a > 0, a < 0):  # every one of the six cases occurs
        for region in (below, ~below & ~above, above):
            assert (sign & region & mask.bool()).any()


@pytest.mark.parametrize("correct", [False, True])
def test_reinforce_gradient_is_the_closed_form(correct):
    """∂/∂logp = weight · A, or weight · A r with `correct`."""
    logp, old_logp, a, mask = random_batch([3, 1, 5])
    loss = loss_of(REINFORCE, logp, old_logp, a, mask, correct=correct)
    r = (logp.detach() - old_logp).exp() if correct else 1.0
    expected = -a * r * mask / (3 * tensor([[3], [1], [5]]))
    assert_close(grad(loss, logp)[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "settings", "normaliser"),
    [
        ("reinforce", {}, None),
        ("reinforce", {"correct": True}, None),
        ("ppo", {}, None),
        ("ppo", {"dual_clip": 1.5, "epsilon_high": 0.28}, None),
        ("grpo", {}, None),
        ("grpo", {}, "token_mean"),
    ],
)
def test_autograd_agrees_with_finite_differences(name, settings, normaliser):
    logp, old_logp, a, mask = random_batch([4, 2, 5], seed=3)
    weight = normaliser and weight_by(normaliser, mask)

    def loss(x):
        return loss_of(ALGORITHMS[name], x, old_logp, a, mask, weight, **settings)

    assert gradcheck(loss, logp)


@every
def test_only_the_current_policy_has_a_gradient(algorithm):
    """Slightly off-policy, inside the narrowest clip."""
    logp, old_logp, a, mask = random_batch([3, 2], spread=1e-5)
    old_logp.requires_grad_()
    rollout_logp = (old_logp - 0.1).detach().requires_grad_()
    weight = mask / 5 * truncated_weight(old_logp, rollout_logp, mask)
    loss_of(algorithm, logp, old_logp, a[:, 0], mask, weight).backward()
    assert logp.grad.abs().sum() > 0
    assert old_logp.grad is None
    assert rollout_logp.grad is None


# Identities


@every
def test_on_policy_every_gradient_is_reinforce(algorithm):
    """At θ = θ_old every method is −weight · Â, if each has the same normaliser."""
    logp, _, a, mask = random_batch([3, 1, 5])
    weight = seq_mean_token_mean(mask)
    loss = loss_of(algorithm, logp, logp.detach(), a[:, 0], mask, weight)
    expected = -a[:, :1] * mask / (3 * tensor([[3], [1], [5]]))
    assert_close(grad(loss, logp)[0], expected, rtol=0, atol=1e-12)


def test_on_policy_the_loss_of_centred_advantages_is_zero_but_not_its_gradient():
    logp, _, _, mask = random_batch([3, 3])
    loss = loss_of(GRPO, logp, logp.detach(), tensor([1.0, -1.0]), mask)
    assert loss.item() == pytest.approx(0, abs=1e-15)
    assert grad(loss, logp)[0].abs().sum() == pytest.approx(1)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_ppo_and_grpo_differ_only_in_advantages_and_normaliser(normaliser):
    batch = random_batch([3, 1, 5])
    weight, settings = weight_by(normaliser, batch[-1]), {"epsilon_low": 0.1}
    ppo, grpo = (
        loss_of(one, *batch, weight, dual_clip=3.0, **settings) for one in (PPO, GRPO)
    )
    assert ppo.item() == grpo.item()
    assert loss_of(PPO, *batch).item() != loss_of(GRPO, *batch).item()


def test_far_bounds_turn_ppo_into_corrected_reinforce():
    logp, old_logp, a, mask = random_batch([3, 1, 5])
    batch = (logp, old_logp, a, mask, token_mean(mask))
    ppo = loss_of(PPO, *batch, epsilon_low=1, epsilon_high=1e9)
    reinforce = loss_of(REINFORCE, *batch, correct=True)
    assert_close(ppo, reinforce)
    assert_close(grad(ppo, logp)[0], grad(reinforce, logp)[0])


@every
def test_one_advantage_a_row_is_copied_to_every_token(algorithm):
    logp, old_logp, a, mask = random_batch([3, 1, 5])
    by_row = loss_of(algorithm, logp, old_logp, a[:, 0], mask)
    by_token = loss_of(algorithm, logp, old_logp, a[:, :1].expand_as(mask), mask)
    assert by_row.item() == by_token.item()


# The policy gradient theorem, by enumeration of one categorical


def expected_gradient(sampling, logits, advantages, **settings):
    """∇ of Σ_a sampling(a) · REINFORCE's objective at a: one row for each action."""
    logp = logits.log_softmax(-1)[:, None]
    old_logp = sampling.log()[:, None]
    weighted = len(logits) * sampling * advantages  # B cancels the mean over rows
    one = torch.ones(len(logits), 1)
    objective = -loss_of(REINFORCE, logp, old_logp, weighted, one, **settings)
    return grad(objective, logits)[0]


def categorical():
    logits = tensor([0.3, -0.5, 1.0, 0.0], requires_grad=True)
    return logits, logits.detach().softmax(-1), tensor([1.0, 0.0, 0.3, -2.0])


def test_the_score_function_gives_the_gradient_of_the_expected_reward():
    logits, policy, rewards = categorical()
    (exact,) = grad(logits.softmax(-1) @ rewards, logits)
    estimate = expected_gradient(policy, logits, rewards)
    assert_close(estimate, exact, rtol=0, atol=1e-14)
    # and in closed form, π_v (R_v − J)
    assert_close(exact, policy * (rewards - policy @ rewards), rtol=0, atol=1e-14)


@pytest.mark.parametrize("baseline", [-3.0, 0.7, 1e4])
def test_a_baseline_adds_no_bias(baseline):
    logits, policy, rewards = categorical()
    without = expected_gradient(policy, logits, rewards)
    estimate = expected_gradient(policy, logits, rewards - baseline)
    assert_close(estimate, without, rtol=0, atol=1e-11)


def test_a_baseline_that_sees_the_action_does():
    logits, policy, rewards = categorical()
    seeing = tensor([0.5, 0.0, 0.0, 0.0])
    bias = expected_gradient(policy, logits, rewards - seeing)
    bias -= expected_gradient(policy, logits, rewards)
    # −b_0 π_0 ∇log π(0) = −½ π_0 (1[v=0] − π_v)
    expected = -0.5 * policy[0] * (tensor([1.0, 0.0, 0.0, 0.0]) - policy)
    assert_close(bias, expected, rtol=0, atol=1e-14)


def test_stale_data_bias_reinforce_unless_it_is_corrected():
    logits, _, rewards = categorical()
    (exact,) = grad(logits.softmax(-1) @ rewards, logits)
    stale = tensor([0.4, 0.1, 0.2, 0.3])
    corrected = expected_gradient(stale, logits, rewards, correct=True)
    assert_close(corrected, exact, rtol=0, atol=1e-14)
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
        a = 18 * chance * to_go
        objective = -loss_of(REINFORCE, logp, logp.detach(), a, torch.ones(9, 2))
        estimate = grad(objective, logits, retain_graph=True)[0]
        assert_close(estimate, exact, rtol=0, atol=1e-13)


# The sampler is not the old policy: its weight multiplies the normaliser's


@every
def test_a_rollout_weight_multiplies_each_token(algorithm):
    """π_old/π_rollout = 1.5 on every token scales the loss by 1.5, up to the cap."""
    logp, old_logp, a, mask = random_batch([3, 1, 5])
    rollout_logp = torch.where(mask.bool(), old_logp - math.log(1.5), NAN)
    weight = weight_by(algorithm.normaliser.__name__, mask)

    def loss(*cap):
        given = weight * truncated_weight(old_logp, rollout_logp, mask, *cap)
        return loss_of(algorithm, logp, old_logp, a[:, 0], mask, given)

    plain = loss_of(algorithm, logp, old_logp, a[:, 0], mask)
    assert_close(loss(), 1.5 * plain)
    assert_close(loss(1.2), 1.2 * plain)


def test_a_truncated_weight_times_a_normaliser_by_hand():
    """Ratios 1.1, 1.1; weights ½ and min(4, 2) = 2: −(½ · 1.1 + 2 · 1.1)/2."""
    logp, old_logp = tensor([[1.1, 1.1]]).log().requires_grad_(), torch.zeros(1, 2)
    rollout_logp, mask = -tensor([[0.5, 4.0]]).log(), mask_of([2])
    loss = loss_of(PPO, logp, old_logp, tensor([1.0]), mask)
    assert loss.item() == pytest.approx(-1.1)
    weight = token_mean(mask) * truncated_weight(old_logp, rollout_logp, mask)
    assert_close(weight, tensor([[0.25, 1.0]]))
    weighted = loss_of(PPO, logp, old_logp, tensor([1.0]), mask, weight)
    assert weighted.item() == pytest.approx(-1.375)
    assert_close(grad(weighted, logp)[0], tensor([[-0.275, -1.1]]))


# The critic's loss


@pytest.mark.parametrize(
    ("value", "epsilon", "expected", "slope"),
    [  # V_old = 1, target 2
        (1.1, 0.2, 0.81 / 2, -0.9),  # within ±ε: ½ (1.1 − 2)²
        (1.5, 0.2, 0.64 / 2, 0.0),  # max(.25, (1.2 − 2)²): it moved far enough
        (0.5, 0.2, 2.25 / 2, -1.5),  # max(2.25, 1.44): the wrong way, come back
        (1.5, None, 0.25 / 2, -0.5),
    ],
)
def test_value_loss_by_hand(value, epsilon, expected, slope):
    assert value_loss_at(value, 2.0, epsilon) == pytest.approx((expected, slope))


@pytest.mark.parametrize(
    ("value", "epsilon", "expected", "slope"),
    [  # V_old = 1, target 0: the mirror image, so the lower side of the clip
        (0.9, 0.2, 0.81 / 2, 0.9),
        (0.5, 0.2, 0.32, 0.0),  # ½ max(.25, .8²): it moved far enough
        (1.5, 0.2, 2.25 / 2, 1.5),
        (0.5, None, 0.25 / 2, 0.5),
    ],
)
def test_value_loss_by_hand_where_the_target_is_below(value, epsilon, expected, slope):
    assert value_loss_at(value, 0.0, epsilon) == pytest.approx((expected, slope))


def value_loss_at(value, target, epsilon):
    """(loss, its slope) of one token with V_old = 1."""
    values, ones = tensor([[value]], requires_grad=True), torch.ones(1, 1)
    loss = value_loss(values, ones, target * ones, ones, epsilon=epsilon)
    return loss.item(), grad(loss, values)[0].item()


def test_value_loss_clips_at_0_2_by_default():
    ones = torch.ones(1, 1)
    assert value_loss(1.5 * ones, ones, 2 * ones, ones).item() == pytest.approx(0.32)


def test_value_loss_is_a_token_mean_that_micro_batches_share():
    values, zero = tensor([[1.0, 2.0], [3.0, 9.0]]), torch.zeros(2, 2)
    mask = mask_of([2, 1])

    def loss(rows, weight=None):
        v, old, targets, m = (x[rows] for x in (values, values, zero, mask))
        return value_loss(v, old, targets, m, weight).item()

    # ½ (1 + 4 + 9)/3
    assert loss([0, 1]) == pytest.approx(14 / 6)
    shares = [loss([i], token_mean(mask)[[i]]) for i in (0, 1)]
    assert sum(shares) == pytest.approx(14 / 6, abs=1e-14)
    # ½ ((1 + 4)/4 + 9/2): the weight that is given is the one that is used
    given = loss([0, 1], seq_mean_token_mean(mask))
    assert given == pytest.approx((5 / 4 + 9 / 2) / 2, abs=1e-14)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_value_loss_takes_int_and_bool_masks(dtype):
    values, zero = tensor([[1.0, 2.0], [3.0, 9.0]]), torch.zeros(2, 2)
    loss = value_loss(values, values, zero, mask_of([2, 1]).to(dtype))
    assert loss.item() == pytest.approx(14 / 6)


def test_value_loss_survives_nan_on_padding():
    values = tensor([[1.0, NAN]], requires_grad=True)
    nan = tensor([[1.0, NAN]])
    loss = value_loss(values, nan, 3 * nan, mask_of([1], width=2))
    assert loss.item() == pytest.approx(2.0)
    assert grad(loss, values)[0].tolist() == [[-2.0, 0.0]]


# Invariance


@st.composite
def batches(draw):
    """1–4 rows of 0–5 tokens, at least one token in all; one advantage a row."""
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    lengths[draw(st.integers(0, len(lengths) - 1))] = draw(st.integers(1, 5))
    logp, old_logp, a, mask = random_batch(lengths, seed=draw(st.integers(0, 1000)))
    return logp, old_logp, a[:, 0], mask


def loss_and_gradient(algorithm, logp, *rest, **settings):
    loss = loss_of(algorithm, logp, *rest, **settings)
    return loss.detach(), grad(loss, logp)[0]


@every
@given(batch=batches(), extra=st.integers(1, 3))
def test_padding_does_not_matter(algorithm, batch, extra):
    """NaN on the right of every row, and inside the old padding."""
    logp, old_logp, a, mask = batch
    loss, slope = loss_and_gradient(algorithm, *batch)
    hole = torch.full((len(mask), extra), NAN)
    padded = [
        torch.cat([torch.where(mask.bool(), x, NAN), hole], 1)
        for x in (logp.detach(), old_logp, a[:, None])
    ]
    padded[0].requires_grad_()
    wider = torch.cat([mask, torch.zeros_like(hole)], 1)
    again, slope_again = loss_and_gradient(algorithm, *padded, wider)
    assert_close(again, loss, rtol=0, atol=1e-12)
    width = logp.shape[1]
    assert_close(slope_again[:, :width], slope, rtol=0, atol=1e-12)
    assert slope_again[:, width:].abs().max() == 0
    assert (slope_again[:, :width] * (1 - mask)).abs().max() == 0


@every
@given(batch=batches(), data=st.data())
def test_the_order_of_rows_does_not_matter(algorithm, batch, data):
    order = tensor(data.draw(st.permutations(range(len(batch[0])))))
    loss, slope = loss_and_gradient(algorithm, *batch)
    shuffled = [x.detach()[order] for x in batch]
    shuffled[0].requires_grad_()
    again, slope_again = loss_and_gradient(algorithm, *shuffled)
    assert_close(again, loss, rtol=0, atol=1e-12)
    assert_close(slope_again, slope[order], rtol=0, atol=1e-12)


@every
@given(batch=batches(), data=st.data())
def test_slices_of_the_weight_sum_to_the_whole(algorithm, batch, data):
    """Micro-batches of any rows, in any order, also parts of a group, trimmed."""
    logp, _, _, mask = batch
    rows = range(len(mask))
    group = tensor([data.draw(st.integers(0, 1)) for _ in rows])
    weight = weight_by(data.draw(st.sampled_from(list(NORMALISERS))), mask, group)
    loss, slope = loss_and_gradient(algorithm, *batch, weight=weight)
    order = tensor(data.draw(st.permutations(rows)))
    total = 0.0
    for part in order.split(data.draw(st.integers(1, len(mask)))):
        width = max(1, int(mask[part].sum(-1).max()))
        short = [x[part, :width] if x.ndim == 2 else x[part] for x in (*batch, weight)]
        total = total + loss_of(algorithm, *short)
    assert_close(total.detach(), loss, rtol=0, atol=1e-12)
    assert_close(grad(total, logp)[0], slope, rtol=0, atol=1e-12)


@every
@given(batch=batches())
def test_a_fully_masked_row_adds_exactly_nothing(algorithm, batch):
    logp, old_logp, a, mask = (x.detach() for x in batch)
    weight = weight_by(algorithm.normaliser.__name__, mask)
    loss, slope = loss_and_gradient(algorithm, *batch)
    nan = torch.full((1, mask.shape[1]), NAN)
    longer = [torch.cat([x, nan]) for x in (logp, old_logp)] + [
        torch.cat([a, nan[0, :1]])
    ]
    longer[0].requires_grad_()
    more_mask = torch.cat([mask, torch.zeros_like(nan)])
    more_weight = torch.cat([weight, nan])
    again, slope_again = loss_and_gradient(algorithm, *longer, more_mask, more_weight)
    assert_close(again, loss, rtol=0, atol=1e-13)
    assert_close(slope_again[:-1], slope, rtol=0, atol=1e-13)
    assert slope_again[-1].tolist() == [0.0] * mask.shape[1]


@every
@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.bool, torch.bfloat16]
)
def test_a_mask_of_any_type_is_the_same_mask(algorithm, dtype):
    logp, old_logp, a, mask = random_batch([3, 1, 5])
    weight = constant(mask, 50) if algorithm.normaliser is constant else None
    loss = loss_of(algorithm, logp, old_logp, a[:, 0], mask, weight)
    again = loss_of(algorithm, logp, old_logp, a[:, 0], mask.to(dtype), weight)
    assert again.item() == loss.item()


# Edge cases


@every
def test_a_batch_of_nothing_is_zero_with_a_zero_gradient(algorithm):
    logp, old_logp, a, mask = random_batch([3, 2])
    loss, slope = loss_and_gradient(algorithm, logp, old_logp, a[:, 0], 0 * mask)
    assert loss.item() == 0
    assert slope.abs().max() == 0


@pytest.mark.parametrize(
    "algorithm", [a for a in ALGORITHMS.values() if not a.critic], ids=lambda a: a.name
)
@pytest.mark.parametrize("size", [3, 5, 6, 7])
def test_equal_rewards_give_exactly_no_gradient(algorithm, size):
    """Also in float32, where the mean of equal 0.1s is not 0.1, and off-policy."""
    rewards = torch.full((size,), 0.1, dtype=torch.float32)
    group = torch.zeros(size, dtype=torch.long)
    a = algorithm.advantages(rewards, group)
    logp, old_logp, _, mask = random_batch([4] * size)
    loss, slope = loss_and_gradient(algorithm, logp, old_logp, a, mask)
    assert a.tolist() == [0.0] * size
    assert loss.item() == 0
    assert slope.abs().max() == 0


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("z", [50.0, -50.0, 200.0, -200.0])
@pytest.mark.parametrize("a", [1.0, -1.0])
def test_extreme_ratios_stay_finite(algorithm, dtype, z, a):
    """Loss, gradient and metrics; and the ordinary token beside keeps its gradient."""
    old_logp = tensor([[-1.0, -1.0], [-1.0, -1.0]], dtype=dtype)
    logp = tensor([[z, -1.0], [-1.0, -1.0]], dtype=dtype, requires_grad=True)
    mask = torch.ones(2, 2, dtype=dtype)
    batch = (logp, old_logp, tensor([a, a]), mask, mask / 4)
    result = algorithm.policy_loss(*batch)
    (slope,) = grad(result.loss, logp)
    assert torch.finfo(result.loss.dtype).bits >= 32
    assert torch.isfinite(result.loss)
    assert torch.isfinite(slope).all()
    assert all(map(math.isfinite, result.metrics.values()))
    assert (slope[1] * a < 0).all()


@pytest.mark.parametrize(
    ("a", "z", "objective"),
    [  # the held ratio e^±20, or the clip
        (1.0, 200.0, 1.2),
        (1.0, -200.0, math.exp(-20)),
        (-1.0, 200.0, -math.exp(20)),
        (-1.0, -200.0, -0.8),
    ],
)
def test_ppo_at_an_extreme_ratio_by_hand(a, z, objective):
    logp = tensor([[z]], dtype=torch.float32, requires_grad=True)
    zero, one = torch.zeros_like(logp), torch.ones(1, 1)
    loss = PPO.policy_loss(logp, zero, tensor([a]), one).loss
    assert -loss.item() == pytest.approx(objective, rel=1e-6)
    assert grad(loss, logp)[0].item() == 0


def test_bfloat16_inputs_are_computed_in_float32():
    """exp(0.0078125) = 1.00784…; bfloat16 has nothing between 1.0078 and 1."""
    logp = tensor([[-1.0]], dtype=torch.bfloat16)
    old_logp = tensor([[-1.0078125]], dtype=torch.bfloat16)
    loss = PPO.policy_loss(logp, old_logp, tensor([1.0]), torch.ones(1, 1)).loss
    assert loss.item() == pytest.approx(-math.exp(0.0078125), rel=1e-6)


# Metrics


def five_tokens():
    """A = 1, 1, −1, −1, 1 at ratios 1.5, ½, ½, 1.5, 1; a sixth is padding."""
    logp = tensor([[1.5, 0.5, 0.5, 1.5, 1.0, 9.0]]).log()
    a = tensor([[1.0, 1.0, -1.0, -1.0, 1.0, 1.0]])
    return logp, torch.zeros(1, 6), a, mask_of([5], width=6)


@clipped
def test_clip_metrics_count_only_clips_that_stop_a_gradient(name):
    """Up at A > 0: one of five. Down at A < 0: one of five. Max |r − 1| is ½."""
    metrics = ALGORITHMS[name].policy_loss(*five_tokens()).metrics
    assert metrics == pytest.approx(
        {
            "ratio/max_deviation": 0.5,
            "clip_ratio/low_mean": 1 / 5,
            "clip_ratio/high_mean": 1 / 5,
            "clip_ratio/region_mean": 2 / 5,
        }
    )


def test_each_bound_has_its_own_metric():
    batch = five_tokens()
    wide_above = PPO.policy_loss(*batch, epsilon_high=0.6).metrics
    wide_below = PPO.policy_loss(*batch, epsilon_low=0.6).metrics
    assert wide_above["clip_ratio/high_mean"] == 0
    assert wide_above["clip_ratio/low_mean"] == pytest.approx(0.2)
    assert wide_below["clip_ratio/low_mean"] == 0
    assert wide_below["clip_ratio/high_mean"] == pytest.approx(0.2)


def test_a_method_with_one_bound_reports_none_for_the_other():
    def upper_only(t):
        return Objective(t.z * t.advantages, high=t.z.exp() > 1.2)

    metrics = replace(GRPO, objective=upper_only).policy_loss(*five_tokens()).metrics
    assert metrics["clip_ratio/low_mean"] == 0
    assert metrics["clip_ratio/high_mean"] == pytest.approx(2 / 5)
    assert metrics["clip_ratio/region_mean"] == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("ratios", "deviation"), [([0.3, 1.2], 0.7), ([0.9, 3.0], 2.0)]
)
def test_the_largest_deviation_of_a_ratio_is_up_or_down(ratios, deviation):
    """max |r − 1|, not |log r| and not r − 1."""
    logp, zero, mask = tensor([ratios]).log(), torch.zeros(1, 2), mask_of([2])
    metrics = REINFORCE.policy_loss(logp, zero, tensor([1.0]), mask).metrics
    assert metrics == pytest.approx({"ratio/max_deviation": deviation})


def test_reinforce_has_no_clip_to_count():
    metrics = REINFORCE.policy_loss(*five_tokens()).metrics
    assert metrics == pytest.approx({"ratio/max_deviation": 0.5})


@every
def test_metrics_are_plain_floats_and_zero_on_policy(algorithm):
    logp, _, a, mask = random_batch([3, 1])
    result = algorithm.policy_loss(logp, logp.detach(), a[:, 0], mask, mask)
    assert {type(value) for value in result.metrics.values()} == {float}
    assert result.metrics["ratio/max_deviation"] == 0
    clips = [v for name, v in result.metrics.items() if name.startswith("clip_ratio")]
    assert all(value == 0 for value in clips)


# The registry


def test_algorithms_stand_in_chapter_order():
    order = "reinforce ppo grpo dr_grpo gspo gspo_token dapo cispo gmpo rspo sapo"
    assert list(ALGORITHMS) == order.split()


@every
def test_an_entry_is_consistent(algorithm):
    """Found by its name, after its parent, with defaults that its loss accepts."""
    names = list(ALGORITHMS)
    assert get(algorithm.name) is algorithm
    if algorithm.parent is not None:
        assert names.index(algorithm.parent) < names.index(algorithm.name)
    assert algorithm.normaliser in NORMALISERS.values()
    first = list(inspect.signature(algorithm.advantages).parameters)[:2]
    assert first == (
        ["rewards", "values"] if algorithm.critic else ["rewards", "group"]
    )
    logp, old_logp, a, mask = random_batch([3, 1])
    batch = logp, old_logp, a[:, 0], mask
    explicit = loss_of(algorithm, *batch, **algorithm.defaults)
    assert explicit.item() == loss_of(algorithm, *batch).item()


TWO = {"epsilon_low": 0.2, "epsilon_high": 0.2, "dual_clip": None}
NARROW = {"epsilon_low": 3e-4, "epsilon_high": 4e-4, "dual_clip": None}
CAP = {"max_ratio": 5.0, "mask_epsilon_low": None, "mask_epsilon_high": None}
GEOMETRIC = {"epsilon_low": 0.4, "epsilon_high": 0.4}
PAPERS = {  # hyperparameters, normaliser, advantages: what the papers print, all of it
    "reinforce": ({"correct": False}, seq_mean_token_mean, leave_one_out),
    "ppo": (TWO, token_mean, gae),
    "grpo": (TWO, seq_mean_token_mean, group_relative),
    "dr_grpo": (TWO, constant, group_centred),
    "gspo": (NARROW, seq_mean_token_mean, group_relative),
    "gspo_token": (NARROW, seq_mean_token_mean, group_relative),
    "dapo": ({**TWO, "epsilon_high": 0.28}, token_mean, group_relative),
    "cispo": (CAP, token_mean, group_relative),
    "gmpo": (GEOMETRIC, seq_mean_token_mean, group_relative),
    "rspo": (GEOMETRIC, seq_mean_token_mean, group_relative),
    "sapo": ({"tau_pos": 1.0, "tau_neg": 1.05}, seq_mean_token_mean, group_relative),
}


def test_defaults_are_the_papers():
    found = {
        name: (dict(one.defaults), one.normaliser, one.advantages)
        for name, one in ALGORITHMS.items()
    }
    assert found == PAPERS
    assert [name for name, one in ALGORITHMS.items() if one.critic] == ["ppo"]
    switched = {n: dict(one.training) for n, one in ALGORITHMS.items() if one.training}
    dapo = {"dynamic_sampling": True, "overlong_share": 0.2}
    assert switched == {"dapo": dapo, "rspo": {"router_shift": True}}


IN_OUR_WORDS = {  # TRL's name for a setting, or verl's: ours
    "epsilon": "epsilon_low",
    "epsilon_high": "epsilon_high",
    "clip_ratio_low": "epsilon_low",
    "clip_ratio_high": "epsilon_high",
    "sapo_temperature_pos": "tau_pos",
    "sapo_temperature_neg": "tau_neg",
    "tau_pos": "tau_pos",
    "tau_neg": "tau_neg",
}


def test_the_framework_settings_that_are_printed_mean_our_defaults():
    """A reader copies `trl` and `verl`. CISPO's cap: TRL's own, verl's less one."""
    compared = set()
    for algorithm in ALGORITHMS.values():
        for text in (algorithm.trl, algorithm.verl):
            printed = dict(re.findall(r"([a-z_]+)=([\d.]+(?:e-?\d+)?)", text))
            for name in IN_OUR_WORDS.keys() & printed.keys():
                value, ours = float(printed[name]), IN_OUR_WORDS[name]
                if algorithm.name == "cispo":
                    if name == "clip_ratio_low":
                        assert value == 1  # 1 − 1 = 0: no lower bound
                        continue
                    value, ours = value + (name == "clip_ratio_high"), "max_ratio"
                assert algorithm.defaults[ours] == value, (algorithm.name, text)
                compared.add((algorithm.name, ours))
    assert {name for name, _ in compared} == {"gspo", "dapo", "cispo", "gmpo", "sapo"}
    assert len(compared) == 2 + 1 + 1 + 2 + 2


def test_the_registry_can_not_be_changed_through_defaults():
    with pytest.raises(TypeError):
        GRPO.defaults["epsilon_low"] = 0.5


# Errors


def test_unknown_algorithm_names_the_nearest():
    with pytest.raises(
        ValueError, match=r"'gropo', did you mean 'grpo'\?; one of: rein"
    ):
        get("gropo")
    with pytest.raises(
        ValueError, match=r"unknown algorithm 'xyzzy'; one of: reinforce"
    ):
        get("xyzzy")


@every
def test_an_unknown_hyperparameter_lists_the_known_ones(algorithm):
    with pytest.raises(TypeError) as caught:
        algorithm.policy_loss(*random_batch([2]), zzz=1)
    names = ", ".join(algorithm.names)
    assert (
        str(caught.value) == f"{algorithm.name} has no setting 'zzz'; it has: {names}"
    )


def test_a_misspelt_hyperparameter_names_the_nearest():
    message = (
        r"ppo has no setting 'epsilon_hihg', did you mean 'epsilon_high'\?; it has"
    )
    with pytest.raises(TypeError, match=message):
        PPO.policy_loss(*random_batch([2]), epsilon_hihg=0.3)
    message = r"reinforce has no setting 'epsilon'; it has: correct$"
    with pytest.raises(TypeError, match=message):
        REINFORCE.policy_loss(*random_batch([2]), epsilon=0.3)


@every
@pytest.mark.parametrize(
    "name",
    "aggregation group max_length batch_tokens rollout_logp router_shift".split(),
)
def test_what_has_to_do_with_averaging_is_no_hyperparameter(algorithm, name):
    """All of it is in `weight`; one that is passed on is not passed over."""
    with pytest.raises(TypeError, match=f"{algorithm.name} has no setting '{name}'"):
        algorithm.policy_loss(*random_batch([2]), **{name: 1})


def refused(algorithm, **settings) -> str:
    """The sentence with which a loss refuses its hyperparameters."""
    with pytest.raises(ValueError, match="must be") as caught:
        algorithm.policy_loss(*random_batch([2]), weight=mask_of([2]), **settings)
    return str(caught.value)


@clipped
@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("epsilon", 0.0, "a number in (0, 1], got 0.0"),
        ("epsilon", -0.2, "a number in (0, 1], got -0.2"),
        ("epsilon", 3.0, "a number in (0, 1], got 3.0"),
        ("epsilon", NAN, "a finite number in (0, 1], got nan"),
        ("epsilon", None, "a number in (0, 1], got None"),
        ("epsilon_low", -0.1, "a number in (0, 1], got -0.1"),
        ("epsilon_low", 1.1, "a number in (0, 1], got 1.1"),
        ("epsilon_low", "0.2", "a number in (0, 1], got '0.2'"),
        ("epsilon_low", True, "a number in (0, 1], got True"),
        ("epsilon_high", 0, "a number > 0, got 0"),
        ("epsilon_high", INF, "a finite number > 0, got inf"),
        ("dual_clip", 1.0, "a number > 1 or None, got 1.0"),
        ("dual_clip", NAN, "a finite number > 1 or None, got nan"),
    ],
)
def test_clip_settings_out_of_range(name, setting, value, expected):
    sentence = refused(ALGORITHMS[name], **{setting: value})
    assert sentence == f"{setting} must be {expected}"


def test_a_switch_is_true_or_false():
    for value in (1, "false", None):
        sentence = refused(REINFORCE, correct=value)
        assert sentence == f"correct must be True or False, got {value!r}"


@every
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"logp": torch.zeros(3)}, r"logp must have shape \(B, T\), got \(3,\)"),
        ({"logp": torch.ones(2, 3).long()}, r"logp must hold floats, got torch.int64"),
        ({"old_logp": torch.zeros(2, 4)}, r"old_logp .* = \(2, 3\), got \(2, 4\)"),
        (
            {"mask": torch.ones(2, 1)},
            r"mask must have shape .* = \(2, 3\), got \(2, 1\)",
        ),
        ({"mask": torch.full((2, 3), 0.5)}, r"mask must hold only 0 and 1"),
        ({"mask": torch.full((2, 3), 2)}, r"mask must hold only 0 and 1"),
        ({"mask": torch.full((2, 3), NAN)}, r"mask must hold only 0 and 1"),
        ({"advantages": torch.ones(3)}, r"advantages must have shape .*got \(3,\)"),
        (
            {"advantages": torch.ones(2, 2)},
            r"advantages must have shape .*got \(2, 2\)",
        ),
        (
            {"advantages": torch.ones(3, 3)},
            r"advantages must have shape .*got \(3, 3\)",
        ),
        ({"advantages": torch.ones(())}, r"advantages must have shape .*got \(\)"),
        ({"advantages": 1.0}, r"advantages must be a tensor, got float; torch.as_t"),
        ({"weight": torch.ones(2, 1)}, r"weight must have shape .*3\), got \(2, 1\)"),
        ({"weight": torch.ones(2)}, r"weight must have shape .*3\), got \(2,\)"),
        ({"weight": "token_mean"}, r"weight must be a tensor, got str; torch.as_te"),
    ],
)
def test_malformed_tensors(algorithm, changed, message):
    good = {
        "logp": torch.zeros(2, 3),
        "old_logp": torch.zeros(2, 3),
        "advantages": torch.ones(2),
        "mask": torch.ones(2, 3),
        "weight": torch.ones(2, 3),
    }
    algorithm.policy_loss(**good)
    with pytest.raises(ValueError, match=message):
        algorithm.policy_loss(**{**good, **changed})


@every
@pytest.mark.parametrize("name", ["logp", "old_logp", "advantages", "weight"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_non_finite_number_on_a_response_token_is_located(algorithm, name, bad):
    names = ("logp", "old_logp", "advantages", "weight")
    tensors = {n: torch.zeros(2, 3) for n in names}
    tensors[name][1, 2] = bad
    with pytest.raises(
        ValueError, match=rf"^{name} is {bad} at row 1, token 2: .*mask"
    ):
        algorithm.policy_loss(**tensors, mask=torch.ones(2, 3))


@every
@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_non_finite_advantage_is_located_beside_padding_and_not_in_it(algorithm, bad):
    """A response's advantage counts if any of its tokens does."""
    z, mask = torch.zeros(3, 3), torch.ones(3, 3)
    mask[1, 1:] = 0
    mask[2] = 0
    weight = mask / mask.sum()
    with pytest.raises(ValueError, match=rf"^advantages is {bad} at row 1: "):
        algorithm.policy_loss(z, z, torch.tensor([1.0, bad, 0.0]), mask, weight)
    algorithm.policy_loss(z, z, torch.tensor([1.0, 0.0, bad]), mask, weight)


def test_dr_grpo_says_which_weight_it_needs():
    with pytest.raises(ValueError, match="needs max_length") as caught:
        ALGORITHMS["dr_grpo"].policy_loss(*random_batch([2]))
    assert str(caught.value) == (
        "the normaliser constant needs max_length: give "
        "weight=normalisers.constant(mask, max_length)"
    )
