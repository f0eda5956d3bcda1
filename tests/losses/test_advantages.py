"""Group advantages, GAE and whitening, against hand arithmetic and enumeration."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from refimpl.advantages import gae, group_centred, group_relative, leave_one_out, whiten

pytestmark = pytest.mark.usefixtures("float64")
BASELINES = [group_relative, group_centred, leave_one_out]
NAN = math.nan


def one_group(rewards):
    return torch.zeros(len(rewards), dtype=torch.long)


# Group advantages


def test_group_relative_by_hand():
    """R = 1, 0, 0, 1: mean ½, squares 4 · ¼ = 1, sample variance 1/3."""
    a = group_relative(tensor([1.0, 0.0, 0.0, 1.0]), one_group(range(4)))
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)  # 0.866…; with ddof 0 it would be 1
    assert_close(a, expected * tensor([1.0, -1.0, -1.0, 1.0]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("eps", [1e-6, 1e-4, 0.5])
def test_eps_is_added_to_the_standard_deviation(eps):
    """R = 0, 2: mean 1, sample variance (1 + 1)/1 = 2."""
    a = group_relative(tensor([0.0, 2.0]), one_group("ab"), eps)
    expected = 1 / (math.sqrt(2) + eps)
    assert_close(a, tensor([-expected, expected]), rtol=0, atol=1e-12)


def test_groups_are_interleaved_of_any_size_and_any_id():
    rewards, group = tensor([1.0, 0.0, 3.0, 0.0, 3.0]), tensor([7, -3, 7, -3, -3])
    # group 7: 1, 3, mean 2.  group −3: 0, 0, 3, mean 1, sample variance 6/2 = 3.
    centred = tensor([-1.0, -1.0, 1.0, -1.0, 2.0])
    deviation = tensor([2.0, 3.0, 2.0, 3.0, 3.0]).sqrt()
    assert_close(group_centred(rewards, group), centred)
    assert_close(group_relative(rewards, group, eps=0), centred / deviation)
    # G/(G−1) is 2 in group 7 and 3/2 in group −3
    loo = tensor([-2.0, -1.5, 2.0, -1.5, 3.0])
    assert_close(leave_one_out(rewards, group), loo)


def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others():
    rewards = tensor([0.3, -1.0, 2.5, 0.7, 0.1])
    others = [(rewards.sum() - r) / 4 for r in rewards]
    a = leave_one_out(rewards, one_group(rewards))
    assert_close(a, rewards - torch.stack(others))
    assert_close(a, 5 / 4 * group_centred(rewards, one_group(rewards)))


@pytest.mark.parametrize("size", [2, 4, 7])
def test_total_advantage_of_a_group_with_k_correct(size):
    """Σ|Ã| = 2k(G−k)/G, and with ddof 1 Σ|Â| = 2 √(k(G−k)(G−1)/G); 0 for k ∈ {0, G}."""
    for k in range(size + 1):
        rewards = (torch.arange(size) < k).double()
        spread = k * (size - k)
        centred = group_centred(rewards, one_group(rewards)).abs().sum().item()
        scaled = (
            group_relative(rewards, one_group(rewards), eps=1e-12).abs().sum().item()
        )
        assert centred == pytest.approx(2 * spread / size, abs=1e-12)
        expected = 2 * math.sqrt(spread * (size - 1) / size)
        assert scaled == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("function", BASELINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero_though_the_mean_rounds(function, dtype):
    rounded = 0
    for value, size in itertools.product([0.1, 0.7, 1e8 / 3], range(2, 12)):
        rewards = torch.full((size,), value, dtype=dtype)
        rounded += bool((rewards.sum() / size != rewards[0]).item())
        assert function(rewards, one_group(rewards)).tolist() == [0.0] * size
    assert rounded > 0, "no mean rounded: this test would prove nothing"


def test_an_equal_group_is_zero_beside_a_mixed_one():
    rewards, group = tensor([0.1, 0.1, 0.1, 0.0, 1.0]), tensor([0, 0, 0, 1, 1])
    a = group_relative(rewards, group)
    assert a[:3].tolist() == [0.0, 0.0, 0.0]
    assert (a[3:].abs() > 0.7).all()


@pytest.mark.parametrize("function", BASELINES)
def test_a_group_of_one_has_no_baseline(function):
    with pytest.raises(ValueError, match=r"at least 2 .* group 5 has 1; .*group_size"):
        function(tensor([1.0, 0.0, 1.0]), tensor([4, 5, 4]))


@pytest.mark.parametrize("function", BASELINES)
@pytest.mark.parametrize("shape", [(2, 2), (3,)])
def test_rewards_and_group_must_be_of_one_shape(function, shape):
    message = r"(rewards|group) must have shape \(B,\).*, got \((2, 2|4,)\)$"
    with pytest.raises(ValueError, match=message):
        function(torch.zeros(shape), one_group(range(4)))


@st.composite
def grouped_rewards(draw):
    """Rewards and ids of 1–3 groups of 2–5 responses, rows shuffled."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=3))
    group = draw(st.permutations([i for i, n in enumerate(sizes) for _ in range(n)]))
    reward = st.sampled_from([0.0, 1.0, 0.1, -1.0, 0.55])
    rewards = draw(st.lists(reward, min_size=len(group), max_size=len(group)))
    return tensor(rewards), tensor(group)


@pytest.mark.parametrize("function", BASELINES)
@given(data=st.data(), batch=grouped_rewards())
def test_a_group_advantage_sees_only_its_own_group(function, data, batch):
    """Permuting rows permutes Â; new ids, shifted R and other groups do nothing."""
    rewards, group = batch
    a = function(rewards, group)
    order = tensor(data.draw(st.permutations(range(len(group)))))
    assert_close(function(rewards[order], group[order]), a[order])
    assert_close(function(rewards, 100 - 7 * group), a)
    assert_close(function(rewards + 3, group), a, rtol=0, atol=1e-8)
    for i in group.unique():
        mine = group == i
        assert_close(function(rewards[mine], group[mine]), a[mine])
        assert a[mine].sum().item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("function", "share"), [(leave_one_out, 1), (group_centred, 2 / 3)]
)
def test_leave_one_out_is_unbiased_and_the_group_mean_rescales(function, share):
    """E[(1/G) Σ A_i ∇log π(a_i)] = ∇J, or (G−1)/G · ∇J: all 3³ groups of three."""
    policy, rewards = tensor([0.2, 0.5, 0.3]), tensor([1.0, 0.0, 0.4])
    grad_j = policy * (rewards - policy @ rewards)  # ∂J/∂logit_v = π_v (R_v − J)
    estimate = torch.zeros(3)
    for drawn in itertools.product(range(3), repeat=3):
        actions = tensor(drawn)
        a = function(rewards[actions], one_group(actions))
        grad_logp = torch.eye(3)[actions] - policy  # ∂log π(a)/∂logit_v
        estimate += policy[actions].prod() * (a[:, None] * grad_logp).mean(0)
    assert_close(estimate, share * grad_j, rtol=0, atol=1e-12)


# GAE


def test_gae_by_hand():
    """r = 0, 0, 1; V = .5, .6, .8; γ = .9, λ = .5, so γλ = .45."""
    rewards, values = tensor([[0.0, 0.0, 1.0]]), tensor([[0.5, 0.6, 0.8]])
    a, targets = gae(rewards, values, torch.ones(1, 3), gamma=0.9, lam=0.5)
    # δ = .9·.6 − .5, .9·.8 − .6, 1 − .8 = .04, .12, .2
    # Â₃ = .2, Â₂ = .12 + .45·.2 = .21, Â₁ = .04 + .45·.21 = .1345
    assert_close(a, tensor([[0.1345, 0.21, 0.2]]))
    assert_close(targets, tensor([[0.6345, 0.81, 1.0]]))


def test_gae_defaults_are_those_of_rlhf():
    """γ = 1, λ = 0.95: with r = 0, 1 and V = 0, Â = .95, 1."""
    a, _ = gae(tensor([[0.0, 1.0]]), torch.zeros(1, 2), torch.ones(1, 2))
    assert_close(a, tensor([[0.95, 1.0]]))


def random_episodes(seed):
    """Three rows of lengths 5, 2, 0, with numbers on the padding too."""
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 3, 5, generator=generator)
    mask = (torch.arange(5) < tensor([[5], [2], [0]])).double()
    return rewards, values, mask


@pytest.mark.parametrize("gamma", [1.0, 0.7])
def test_gae_telescopes(gamma):
    """λ = 1 is return − V and λ = 0 is δ, each summed directly."""
    rewards, values, mask = random_episodes(0)
    monte_carlo, td = torch.zeros(3, 5), torch.zeros(3, 5)
    for row, length in enumerate([5, 2, 0]):
        for t in range(length):
            rest = range(t, length)
            total = sum(gamma ** (u - t) * rewards[row, u] for u in rest)
            after = values[row, t + 1] if t + 1 < length else 0
            monte_carlo[row, t] = total - values[row, t]
            td[row, t] = rewards[row, t] + gamma * after - values[row, t]
    assert_close(gae(rewards, values, mask, gamma, lam=1.0)[0], monte_carlo)
    assert_close(gae(rewards, values, mask, gamma, lam=0.0)[0], td)


@given(gamma=st.floats(0, 1), lam=st.floats(0, 1), seed=st.integers(0, 1000))
def test_gae_is_the_discounted_sum_of_deltas(gamma, lam, seed):
    """Â_t = Σ_l (γλ)^l δ_{t+l}; the targets are Â + V; padding changes nothing."""
    rewards, values, mask = random_episodes(seed)
    a, targets = gae(rewards, values, mask, gamma, lam)
    delta, _ = gae(rewards, values, mask, gamma, lam=0.0)
    for t in range(5):
        direct = sum((gamma * lam) ** (u - t) * delta[:, u] for u in range(t, 5))
        assert_close(a[:, t], direct * mask[:, t])
    assert_close(targets, a + values * mask)
    garbage = torch.where(mask.bool(), 0.0, 1e3)
    again = gae(rewards + garbage, values - garbage, mask, gamma, lam)
    assert torch.equal(again[0], a)
    assert torch.equal(again[1], targets)


def test_gae_steps_over_holes_in_the_mask():
    """1 1 0 0 1 1: the same four tokens without holes, by hand.

    r = 0, 0, 0, 1; V = .5, .6, .7, .8; γ = .9, λ = .5, so γλ = .45.
    """
    rewards = tensor([[0.0, 0.0, 9.0, NAN, 0.0, 1.0]])
    values = tensor([[0.5, 0.6, -5.0, NAN, 0.7, 0.8]])
    mask = tensor([[1.0, 1.0, 0.0, 0.0, 1.0, 1.0]])
    a, targets = gae(rewards, values, mask, gamma=0.9, lam=0.5)
    # δ = .9·.6 − .5, .9·.7 − .6, .9·.8 − .7, 1 − .8 = .04, .03, .02, .2
    # Â₄ = .2, Â₃ = .02 + .45·.2 = .11, Â₂ = .03 + .45·.11, Â₁ = .04 + .45·.0795
    expected = tensor([[0.075775, 0.0795, 0.0, 0.0, 0.11, 0.2]])
    assert_close(a, expected, rtol=0, atol=1e-12)
    assert_close(targets, tensor([[0.575775, 0.6795, 0.0, 0.0, 0.81, 1.0]]))
    dense = [x[mask.bool()][None] for x in (rewards, values, mask)]
    assert torch.equal(gae(*dense, gamma=0.9, lam=0.5)[0][0], a[mask.bool()])


def test_gae_survives_nan_on_padding():
    rewards, values = tensor([[1.0, NAN]]), tensor([[0.25, NAN]])
    a, targets = gae(rewards, values, tensor([[1.0, 0.0]]))
    assert a.tolist() == [[0.75, 0.0]]
    assert targets.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_gae_and_whiten_take_int_and_bool_masks(dtype):
    rewards, values, mask = random_episodes(1)
    a, targets = gae(rewards, values, mask)
    other_a, other_targets = gae(rewards, values, mask.to(dtype))
    assert torch.equal(a, other_a)
    assert torch.equal(targets, other_targets)
    assert_close(whiten(a, mask.to(dtype)), whiten(a, mask))


def test_gae_gives_the_critic_no_gradient():
    rewards, values = (torch.ones(1, 2, requires_grad=True) for _ in range(2))
    a, targets = gae(rewards, values, torch.ones(1, 2))
    assert not a.requires_grad
    assert not targets.requires_grad


@pytest.mark.parametrize("name", ["gamma", "lam"])
@pytest.mark.parametrize("value", [-0.1, 1.1, NAN])
def test_gamma_and_lambda_lie_between_0_and_1(name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .*\[0, 1\], got {value}$"):
        gae(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), **{name: value})


# Whitening


def test_whiten_by_hand_over_response_tokens_only():
    """1, 2 and 3 on the response: mean 2, variance 2/3; 50 on the padding."""
    a = whiten(tensor([[1.0, 2.0], [3.0, 50.0]]), tensor([[1.0, 1.0], [1.0, 0.0]]))
    step = 1 / math.sqrt(2 / 3)
    assert_close(a, tensor([[-step, 0.0], [step, 0.0]]), rtol=0, atol=1e-7)


def test_whitening_nothing_or_equal_numbers_gives_zero():
    assert whiten(tensor([[3.0, 4.0]]), torch.zeros(1, 2)).tolist() == [[0.0, 0.0]]
    assert whiten(tensor([[3.0, 3.0]]), torch.ones(1, 2)).tolist() == [[0.0, 0.0]]


def test_whiten_survives_nan_on_padding():
    a = whiten(tensor([[1.0, -1.0, NAN]]), tensor([[1.0, 1.0, 0.0]]), eps=0.0)
    assert a.tolist() == [[1.0, -1.0, 0.0]]


def test_whole_number_rewards_are_welcome():
    """A verifier may return 0 and 1 as integers."""
    group = torch.zeros(4, dtype=torch.long)
    for function in (group_relative, group_centred, leave_one_out):
        whole = function(torch.tensor([1, 0, 0, 1]), group)
        exact = function(torch.tensor([1.0, 0.0, 0.0, 1.0]), group)
        assert_close(whole.double(), exact.double(), rtol=0, atol=1e-6)
