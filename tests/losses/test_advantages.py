"""Group advantages, GAE and whitening, against hand arithmetic and enumeration."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from refimpl import UserError
from refimpl.advantages import (
    CRITIC_FREE,
    PerToken,
    Scored,
    batch_centred,
    batch_std,
    distillation,
    gae,
    gdpo,
    group_centred,
    group_relative,
    lam_by_length,
    leave_one_out,
    leave_one_out_std,
    maxrl,
    opo,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    std_of_advantages,
    whiten,
    with_teacher,
)
from tests.losses.batches import EXACT, NAN, mask_of

pytestmark = pytest.mark.usefixtures("float64")
BASELINES = group_relative, group_centred, leave_one_out, leave_one_out_std, maxrl
baselines = pytest.mark.parametrize("function", BASELINES)


def one_group(rewards):
    return Scored(rewards, torch.zeros(len(rewards), dtype=torch.long))


def episodes(rewards, values, mask, **given):
    """`gae` of rewards per token; the groups do not matter."""
    return gae(Scored(rewards, torch.arange(len(mask)), mask, values, **given))


FOUR, SIGNS = [0] * 4, tensor([1.0, -1, -1, 1]).double()
# Of any size, id and order: 1 and 3 have the mean 2; 0, 0 and 3 the mean 1
PAID, IDS = [1, 0, 3, 0, 3], [7, -3, 7, -3, -3]
CENTRED = tensor([-1.0, -1, 1, -1, 2]).double()
SPREAD = tensor([2.0, 3, 2, 3, 3]).double()
SOLVED = [1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0], [0] * 4 + [1] * 4 + [2] * 4
NEAR = [9, 0.1, 0.1, 0.1, 0.4, 3], [3, 5, 5, 5, 5, 3]
PAIRS, HALVES = ([1, 0, 3, 1], [0, 0, 1, 1]), tensor([0.5, -0.5, 1, -1]).double()
EIGHT = [1, 1, 1, 0, 0, 0, 0, 1], [0] * 4 + [1] * 4
QUARTERS = tensor([1.0, 1, 1, -3, -1, -1, -1, 3]).double() / 4
THIRD, ROOT, LONG = 3**-0.5, 3**0.5, [3] * 4
OTHERS = partial(leave_one_out_std, eps=0.0)
BOTH = reinforce_plus_plus, reinforce_plus_plus_baseline
BY_HAND = [  # estimator, rewards, groups, Â, and lengths where they count
    # Mean ½, squares 4 · ¼ = 1, sample variance 1/3; with ddof 0 it would be ±1
    (group_relative, [1, 0, 0, 1], FOUR, SIGNS * 0.5 / (THIRD + 1e-6)),
    (partial(group_relative, eps=0.5), [0, 2], [0, 0], [-(x := 1 / (2**0.5 + 0.5)), x]),
    (group_centred, PAID, IDS, CENTRED),
    # Sample variances 2 and 6/2
    (partial(group_relative, eps=0.0), PAID, IDS, CENTRED / SPREAD.sqrt()),
    # G/(G−1) is 2 and 3/2
    (leave_one_out, PAID, IDS, CENTRED * tensor([2, 1.5, 2, 1.5, 1.5])),
    # NeMo-RL's mean and std of the others; with the std of all ±1.5, −.5
    (OTHERS, [1, 0, 0, 0], FOUR, [1, -THIRD, -THIRD, -THIRD]),
    (OTHERS, [1, 1, 0, 0], FOUR, [2 * THIRD] * 2 + [-2 * THIRD] * 2),
    (OTHERS, *NEAR, [6, -THIRD, -THIRD, -THIRD, 0.3, -6]),
    # A success of 1, 2 and 0 in 4 weighs 3, 1 and 0, and a mean below 0 nothing
    (maxrl, *SOLVED, [3, -1, -1, -1, 1, 1, -1, -1, 0, 0, 0, 0]),
    (maxrl, [0.5, -1, 0, 0], FOUR, FOUR),
    # ±½ and ±1 over the std of all four, √(19/12)
    (partial(batch_std, eps=0.1), *PAIRS, HALVES / (math.sqrt(19 / 12) + 0.1)),
    # 3 and 1 right: A = ±¼ and ±¾, of which std² = 1.5 / 7
    (partial(std_of_advantages, eps=0.0), *EIGHT, QUARTERS / math.sqrt(1.5 / 7)),
    # Of four prompts: the mean of all, which is not that of the others
    (batch_centred, [1, 0, 0, 0], [0, 1, 2, 3], [0.75, -0.25, -0.25, -0.25]),
    (batch_centred, [1], [0], [0]),
    # 3 tokens for 1, 1 for 0: the baseline is ¾; without a token the mean, as in verl
    (opo, [1, 0, 0, 2], [0, 0, 2, 2], [0.25, -0.75, -1, 1], [3, 1, 0, 0]),
    (opo, [1, 0, 1], [0] * 3, [1 / 3, -2 / 3, 1 / 3], [0, 2, 4]),
    # ¾ and −¼ over √(3/16); verl 0.9.1, with ddof 1 over 12 tokens, has 1.6583, −0.5528
    *((f, [1, 0, 0, 0], FOUR, [ROOT, -THIRD, -THIRD, -THIRD], LONG) for f in BOTH),
    # Beside a prompt that is solved: mean ¾, std √(3/16); with the baseline 0 and √⅛
    (BOTH[0], [1, 1, 1, 0], [0, 0, 1, 1], [THIRD, THIRD, THIRD, -ROOT], [1] * 4),
    (BOTH[1], [1, 1, 1, 0], [0, 0, 1, 1], [0, 0, 2**0.5, -(2**0.5)], [1] * 4),
    (BOTH[0], [1, 0], [0, 1], [1, -1], [1, 1]),
]


def name(case):
    return getattr(case[0], "func", case[0]).__name__


@pytest.mark.parametrize("case", BY_HAND, ids=name)
def test_by_hand(case):
    function, rewards, groups, expected, *lengths = case
    mask = mask_of(*lengths or [[1] * len(rewards)])
    found = function(Scored(tensor(rewards).double(), tensor(groups), mask))
    wanted = torch.as_tensor(expected).double()
    wanted = wanted[:, None] * mask if found.ndim == 2 else wanted
    assert_close(found, wanted, rtol=0, atol=1e-7)


@baselines
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero_though_the_mean_rounds(function, dtype):
    """Also beside a group whose rewards differ."""
    rounded = 0
    for value, size in itertools.product([0.1, 0.7, 1e8 / 3], range(2, 12)):
        rewards = torch.full((size,), value, dtype=dtype)
        rounded += bool((rewards.sum() / size != rewards[0]).item())
        assert function(one_group(rewards)).tolist() == [0.0] * size
        both = torch.cat([rewards, tensor([0.0, 1.0], dtype=dtype)])
        a = function(Scored(both, tensor([0] * size + [1, 1])))
        assert a[:-2].tolist() == [0.0] * size and (a[-2:].abs() > 0.4).all()
    assert rounded > 0, "no mean rounded: this test would prove nothing"


@pytest.mark.parametrize("function", [f for n, f in CRITIC_FREE.items() if n != "gdpo"])
def test_equal_rewards_of_a_whole_batch_give_exactly_zero(function):
    scored = Scored(torch.full((3,), 0.1), tensor([0] * 3), mask_of([3, 1, 2]))
    assert not function(scored).any()


@pytest.mark.parametrize("function", [opo, reinforce_plus_plus_baseline])
def test_a_baseline_needs_two_responses(function):
    with pytest.raises(UserError, match=r"at least 2 .* group 7 has 1"):
        function(Scored(tensor([1.0, 0, 1]), tensor([0, 7, 0]), mask_of([1, 1, 1])))


@baselines
def test_whole_numbers_and_rewards_per_token_are_welcome(function):
    """A verifier may return 0 and 1 as integers; a KL in the reward makes (B, T)."""
    exact = function(one_group(tensor([1.0, 0.0, 0.0, 1.0])))
    whole = function(one_group(tensor([1, 0, 0, 1])))
    assert_close(whole.double(), exact, rtol=0, atol=1e-6)
    by_token = tensor([[0.5, 0.5], [-1.0, 1.0], [0.0, 0.0], [2.0, -1.0]])
    scored = Scored(by_token, torch.zeros(4, dtype=torch.long), torch.ones(4, 2))
    assert_close(function(scored), exact, **EXACT)


def test_two_ways_to_add_two_rewards_by_hand():
    """Format 1 1 0 0 and accuracy 1 0 0 0: sum then normalise, or GDPO."""
    parts = tensor([[1.0, 1, 0, 0], [1, 0, 0, 0]]).T
    scored = replace(one_group(parts.sum(-1)), components=parts)
    found = group_relative(scored).tolist()
    assert found == pytest.approx([1.3056, 0.2611, -0.7833, -0.7833], abs=1e-4)
    found = gdpo(scored).tolist()
    assert found == pytest.approx([1.3321, 0.2061, -0.7691, -0.7691], abs=1e-4)
    # One right answer, three others well-formed, of eight: paid alike when summed.
    wide = tensor([[0.0, 1], *[[1, 0]] * 3, *[[0, 0]] * 4])
    scored = replace(one_group(wide.sum(-1)), components=wide)
    found = gdpo(scored)[:2].tolist()
    assert found == pytest.approx([1.4717, 0.7181], abs=1e-4)
    # Under GDPO a reward's scale changes nothing, its weight does.
    small = replace(scored, components=wide * tensor([0.1, 1.0]))
    assert gdpo(small)[:2].tolist() == pytest.approx(found, abs=1e-4)
    light = gdpo(replace(scored, weights=(0.1, 1.0)))[:2].tolist()
    assert light == pytest.approx([2.4630, -0.2387], abs=1e-4)


def test_a_teacher_says_how_much_likelier_each_token_is():
    """Right way round, 0 on holes, a constant; and κ times it on top of Â."""
    teacher = tensor([[-0.5, -2.0, 9.0, -0.1, -1.0], [-0.25] * 5])
    logp = tensor([[-1.0, -0.5, NAN, -0.1, -3.0], [-1.0] * 5], requires_grad=True)
    mask = tensor([[1.0, 1, 0, 1, 1], [1, 0, 0, 0, 0]])
    given = {"mask": mask, "logp": logp, "teacher_logp": teacher}
    scored = Scored(tensor([1.0, -1.0]), tensor([0, 0]), **given)
    found = distillation(scored)
    assert found[0].tolist() == pytest.approx([0.5, -1.5, 0, 0, 2])
    assert not found.requires_grad
    for kappa, expected in ((1.0, [1.5, -0.5, 0, 1, 3]), (0.5, [1.25, 0.25, 0, 1, 2])):
        both = with_teacher(lambda s: s.total, kappa)(scored)
        assert both[0].tolist() == pytest.approx(expected)
        assert both[1].tolist() == pytest.approx([-1 + 0.75 * kappa, 0, 0, 0, 0])
    same = replace(scored, teacher_logp=logp.detach())
    assert not distillation(same).any()
    with pytest.raises(UserError, match="needs teacher_logp"):
        distillation(replace(scored, teacher_logp=None))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_or_a_value_that_is_no_number_is_refused(bad):
    """Outside the mask it may be anything; a component that is NaN does not apply."""
    paid, group, mask = tensor([1.0, bad]), tensor([0, 0]), mask_of([2, 1])
    rows = tensor([[1.0, 0.5], [1.0, bad]])
    Scored(rows, group, mask, values=rows)
    for name, given in {
        "rewards": {"rewards": paid, "mask": mask},
        "rewards ": {"rewards": rows, "mask": mask_of([2, 2])},
        "values": {"rewards": 0 * group, "mask": mask_of([2, 2]), "values": rows},
    }.items():
        with pytest.raises(UserError, match=rf"{name.strip()} is {bad} at \[1"):
            Scored(group=group, **given)
    with pytest.raises(UserError, match="mine"):
        PerToken(lambda scored: scored.rewards * bad, "mine")(Scored(rows, group, mask))
    parts = Scored(0 * group, group, mask, components=tensor([[1.0], [math.nan]]))
    with pytest.raises(UserError, match="one returned None"):
        gdpo(parts)


def test_maxrl_follows_the_first_terms_of_log_p():
    """E[(1/G) Σ Â ∇log π] = ∇ Σ_{k<G} −(1−p)^k/k, over all outcomes of G coins of
    probability p, whose ∇log π by p is 1/p or −1/(1−p)."""
    for size, p in itertools.product((2, 3, 5), (0.1, 0.5, 0.9)):
        slope = 0.0
        for coins in itertools.product((0.0, 1.0), repeat=size):
            paid = tensor(coins)
            chance = torch.where(paid > 0, p, 1 - p).prod()
            log_slope = torch.where(paid > 0, 1 / p, -1 / (1 - p))
            slope += chance * (maxrl(one_group(paid)) * log_slope).mean()
        assert slope.item() == pytest.approx(sum((1 - p) ** k for k in range(size - 1)))


def test_whitening_over_tokens_pushes_a_group_of_equal_rewards():
    """½ once, −½ three times and 0 four times: mean −⅛, variance 7/64."""
    scored = Scored(tensor([1.0, 0, 1, 1]), tensor([0, 0, 1, 1]), mask_of([1, 3, 2, 2]))
    found = reinforce_plus_plus_baseline(scored)
    wanted = [5 / 7**0.5, 0, 0], [-3 / 7**0.5] * 3, *([[7**-0.5] * 2 + [0]] * 2)
    assert_close(found, tensor([*wanted]), rtol=1e-6, atol=1e-6)


def test_a_kl_in_the_reward_counts_from_its_token_on():
    """r = −½, 1 and 0, 0: ½ and 1 to go; mean ⅜, variance 11/64."""
    scored = Scored(tensor([[-0.5, 1.0], [0, 0]]), tensor([0, 1]), torch.ones(2, 2))
    found = reinforce_plus_plus(scored)
    wanted = tensor([[1.0, 5], [-3, -3]]) / 11**0.5
    assert_close(found, wanted, rtol=1e-6, atol=0)


def test_gae_has_rlhf_s_gamma_and_lambda_by_default():
    """γ = 1, λ = .95: with r = 0, 1 and V = 0, Â = .95, 1."""
    a = episodes(tensor([[0.0, 1.0]]), torch.zeros(1, 2), torch.ones(1, 2))
    assert_close(a, tensor([[0.95, 1.0]]))


def test_gae_steps_over_holes_in_the_mask():
    """1 1 0 0 1 1, by hand.

    r = 0, 0, 0, 1; V = .5, .6, .7, .8; γ = .9, λ = .5, so γλ = .45.
    """
    rewards = tensor([[0.0, 0.0, 9.0, NAN, 0.0, 1.0]])
    values = tensor([[0.5, 0.6, -5.0, NAN, 0.7, 0.8]])
    mask = tensor([[1.0, 1.0, 0.0, 0.0, 1.0, 1.0]])
    a = episodes(rewards, values, mask, gamma=0.9, lam=0.5)
    # δ = .9·.6 − .5, .9·.7 − .6, .9·.8 − .7, 1 − .8 = .04, .03, .02, .2
    # Â₄ = .2, Â₃ = .02 + .45·.2 = .11, Â₂ = .03 + .45·.11, Â₁ = .04 + .45·.0795
    expected = tensor([[0.075775, 0.0795, 0.0, 0.0, 0.11, 0.2]])
    assert_close(a, expected, **EXACT)


def test_two_lambdas_by_hand():
    """Five tokens over a hole, R = 1: λ = 1 − 1/(1.5 · 5) for the policy, 1 for the
    critic. From one λ the critic would learn its own bias; the span is 8."""
    mask = tensor([[1.0, 1, 0, 0, 0, 1, 1, 1]])
    values = tensor([[0.2, 0.4, 9, 9, 9, 0.5, 0.7, 0.9]])
    rewards = tensor([[0.0, 0, 0, 0, 0, 0, 0, 1]])
    lam = lam_by_length(mask, 1.5)
    assert lam.item() == pytest.approx(1 - 1 / 7.5, abs=1e-7)
    found = episodes(rewards, values, mask, lam=lam)[mask.bool()]
    expected = [0.6235, 0.4887, 0.4484, 0.2867, 0.1]
    assert found.tolist() == pytest.approx(expected, abs=5e-5)
    own = episodes(rewards, values, mask, lam=1.0) + values
    assert own[mask.bool()].tolist() == pytest.approx([1.0] * 5)
    lengths = (torch.arange(100) < tensor([[4], [8], [20], [40], [100]])).double()
    for alpha, expected in (
        (1.5, [0.8333, 0.9167, 0.9667, 0.9833, 0.9933]),
        (0.05, [0, 0, 0, 0.5, 0.8]),  # VAPO's, where a short answer's is held at 0
    ):
        found = lam_by_length(lengths, alpha).tolist()
        assert found == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("gamma", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("lam", [1.0, 0.9, 0.0])
def test_gae_is_the_discounted_sum_of_deltas(gamma, lam):
    """Â_t = Σ_l (γλ)^l δ_{t+l}, a constant; padding changes nothing, nor does the
    mask's type."""
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 3, 5, generator=generator)
    mask = mask_of([5, 2, 0], width=5)
    rewards, values = rewards * mask, values * mask
    delta = rewards + gamma * torch.cat([values[:, 1:], values[:, :1] * 0], 1) - values
    later = torch.arange(5) - torch.arange(5)[:, None]  # of token t + l from token t

    def discounted(x, factor):
        return x @ torch.where(later >= 0, factor ** later.clamp(min=0), 0.0).T

    expected = discounted(delta, gamma * lam)
    nan = torch.where(mask.bool(), 0.0, NAN)
    for dtype in (torch.float64, torch.int64, torch.bool):
        given = [(x + nan).requires_grad_() for x in (rewards, values)]
        found = episodes(*given, mask.to(dtype), gamma=gamma, lam=lam)
        assert_close(found, expected)
        assert not found.requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool])
def test_whiten_by_hand_over_response_tokens_only(dtype):
    """1, 2 and 3 on the response: mean 2, variance 2/3; 50 and NaN on the padding."""
    mask = tensor([[1, 1, 0], [1, 0, 0]]).to(dtype)
    a = whiten(tensor([[1.0, 2.0, NAN], [3.0, 50.0, NAN]]), mask)
    step = 1 / math.sqrt(2 / 3)
    expected = tensor([[-step, 0.0, 0.0], [step, 0.0, 0.0]])
    assert_close(a, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("mask", [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
def test_whitening_nothing_one_number_or_equal_ones_gives_zero(mask):
    assert whiten(tensor([[3.0, 3.0]]), tensor([mask])).tolist() == [[0.0, 0.0]]
