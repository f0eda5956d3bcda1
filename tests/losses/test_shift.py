"""The router shift γ: what it does to a loss through π_old, or through the weight.

How γ is measured on a mixture of experts is tested in tests/rollout/test_moe.py.
"""

import math

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl import moe
from refimpl.algorithms import ALGORITHMS
from refimpl.importance import truncated_weight
from refimpl.normalisers import constant, seq_mean_token_mean
from tests.losses.test_algorithms import mask_of, random_batch, weight_by

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:.*geometric mean over a whole"),
]
every = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
placements = pytest.mark.parametrize("placement", moe.PLACEMENTS)
GRPO, GSPO, GMPO, RSPO = (ALGORITHMS[name] for name in "grpo gspo gmpo rspo".split())
CLOSE = {"rtol": 0, "atol": 1e-12}


def shifted_batch(spread=0.4):
    """A batch of `random_batch`, and a γ in (0.7, 1] per token."""
    logp, old_logp, a, mask = random_batch([5, 1, 3], spread=spread)
    generator = torch.Generator().manual_seed(7)
    gamma = 0.7 + 0.3 * torch.rand(mask.shape, generator=generator)
    return logp, old_logp, a[:, 0], mask, gamma


def loss_and_slope(algorithm, batch, weight=None, placement="before_clip", **hyper):
    """(loss, its gradient) with the shift of `batch`, as a trainer applies it."""
    logp, old_logp, a, mask, gamma = batch
    weight = seq_mean_token_mean(mask) if weight is None else weight
    one_ratio = algorithm.one_ratio
    old, weight = moe.shifted(old_logp, weight, mask, gamma, placement, one_ratio)
    loss = algorithm.policy_loss(logp, old, a, mask, weight, **hyper).loss
    return loss.detach(), grad(loss, logp)[0]


# By hand: r = 1.1 and 0.7, γ = 0.9 and 0.8, Â = 1


def by_hand(algorithm, placement, r=(1.1, 0.7), gamma=(0.9, 0.8), a=1.0, **hyper):
    """(objective, its gradient) of one response of two tokens, mean over tokens."""
    logp = tensor([r]).log().requires_grad_()
    batch = (logp, torch.zeros(1, 2), tensor([a]), torch.ones(1, 2), tensor([gamma]))
    loss, slope = loss_and_slope(algorithm, batch, placement=placement, **hyper)
    return -loss.item(), (-slope)[0].tolist()


def test_before_the_clip_gamma_multiplies_the_ratio_by_hand():
    """γ r = 0.99 and 0.56: the bound 1.05 no longer bites."""
    high = {"epsilon_low": 0.2, "epsilon_high": 0.05}
    value, slope = by_hand(GRPO, "before_clip", **high)
    assert value == pytest.approx((0.99 + 0.56) / 2)
    assert slope == pytest.approx([0.99 / 2, 0.56 / 2])


def test_after_the_clip_gamma_multiplies_each_tokens_objective_by_hand():
    """min(1.1, 1.05) · 0.9 and 0.7 · 0.8: the clipped token stays clipped."""
    high = {"epsilon_low": 0.2, "epsilon_high": 0.05}
    value, slope = by_hand(GRPO, "after_clip", **high)
    assert value == pytest.approx((1.05 * 0.9 + 0.7 * 0.8) / 2)
    assert slope == pytest.approx([0, 0.56 / 2])


@placements
def test_where_a_response_has_one_ratio_gamma_is_its_geometric_mean(placement):
    """s = √(1.1 · 0.7), γ = √(0.9 · 0.8): unclipped, both placements give s γ."""
    wide = {"epsilon_low": 1.0, "epsilon_high": 0.09}
    value, slope = by_hand(GSPO, placement, **wide)
    assert value == pytest.approx(math.sqrt(1.1 * 0.7 * 0.9 * 0.8))
    assert slope == pytest.approx([value / 2, value / 2])


def test_one_ratio_is_clipped_without_gamma_or_with_it():
    """s = √(1.1 · 0.7) = 0.877 with Â = −1 and ε_low = 0.2: γ s = 0.745 is clipped."""
    wide = {"epsilon_low": 0.2, "epsilon_high": 0.09, "a": -1.0}
    s, gamma = math.sqrt(1.1 * 0.7), math.sqrt(0.9 * 0.8)
    value, slope = by_hand(GSPO, "before_clip", **wide)
    assert (value, slope) == (pytest.approx(-0.8), [0, 0])
    value, slope = by_hand(GSPO, "after_clip", **wide)
    assert value == pytest.approx(-s * gamma)
    assert slope == pytest.approx([-s * gamma / 2] * 2)


@pytest.mark.parametrize("a", [1.0, -1.0])
@pytest.mark.parametrize(
    ("placement", "above"),
    [
        ("before_clip", min(1.6 * 0.8, math.exp(0.4))),
        ("after_clip", math.exp(0.4) * 0.8),
    ],
)
def test_rspo_by_hand(placement, above, a):
    """r = 1.2 and 1.6, γ = 0.9 and 0.8, bound e^0.4 = 1.49: γ r = 1.28 lies below."""
    value, _ = by_hand(RSPO, placement, r=(1.2, 1.6), a=a)
    expected = 1.2 * 0.9 * (above if a > 0 else 1.6 * 0.8)
    assert value == pytest.approx(a * math.sqrt(expected))


# Identities


@every
@placements
def test_a_shift_of_one_is_no_shift(algorithm, placement):
    _, old_logp, _, mask, gamma = shifted_batch()
    weight = constant(mask, 7)
    old, same = moe.shifted(
        old_logp, weight, mask, torch.ones_like(gamma), placement, algorithm.one_ratio
    )
    assert torch.equal(old, old_logp)
    assert torch.equal(same, weight)


@every
def test_before_the_clip_the_loss_sees_the_ratio_times_gamma(algorithm):
    """As if the policy itself had lost γ; but for methods with log π in them."""
    logp, old_logp, a, mask, gamma = shifted_batch()
    found = loss_and_slope(algorithm, (logp, old_logp, a, mask, gamma))
    lower = (logp.detach() + gamma.log()).requires_grad_()
    one = torch.ones_like(gamma)
    expected = loss_and_slope(algorithm, (lower, old_logp, a, mask, one))
    assert_close(found[1], expected[1], **CLOSE)
    if algorithm.name not in ("reinforce", "cispo"):
        assert_close(found[0], expected[0], **CLOSE)


@every
def test_after_the_clip_the_loss_is_weighed_by_gamma(algorithm):
    logp, old_logp, a, mask, gamma = shifted_batch()
    weight = weight_by("token_mean", mask)
    found = loss_and_slope(
        algorithm, (logp, old_logp, a, mask, gamma), weight, "after_clip"
    )
    if algorithm.one_ratio:
        count = mask.sum(-1, keepdim=True)
        gamma = ((gamma.log() * mask).sum(-1, keepdim=True) / count).exp()
    loss = algorithm.policy_loss(logp, old_logp, a, mask, weight * gamma).loss
    assert_close(found[0], loss.detach(), **CLOSE)
    assert_close(found[1], grad(loss, logp)[0], **CLOSE)


@placements
def test_rspo_is_gmpo_with_a_shift(placement):
    batch = shifted_batch()
    rspo, gmpo = (loss_and_slope(x, batch, placement=placement) for x in (RSPO, GMPO))
    assert torch.equal(rspo[0], gmpo[0])
    assert torch.equal(rspo[1], gmpo[1])
    plain = GMPO.policy_loss(*batch[:4]).loss
    assert (rspo[0] - plain).abs() > 1e-2


@placements
def test_closed_form_gradient_of_rspo(placement):
    """∂J/∂log π_t = Â/(B|o|) · GM · 1[not clipped], the same for all its tokens."""
    batch = logp, old_logp, a, mask, gamma = shifted_batch(spread=0.6)
    _, slope = loss_and_slope(RSPO, batch, placement=placement)
    z, shift = (logp - old_logp).detach() * mask, gamma.log() * mask
    before, after = (shift, 0) if placement == "before_clip" else (0, shift)
    up = (a > 0)[:, None]
    free = torch.where(up, z + before <= 0.4, z + before >= -0.4) * mask
    held = torch.where(up, (z + before).clamp(max=0.4), (z + before).clamp(min=-0.4))
    lengths = mask.sum(-1)
    mean = (((held + after) * mask).sum(-1) / lengths).exp()
    expected = -(a * mean / (len(mask) * lengths))[:, None] * free
    assert_close(slope, expected, **CLOSE)
    assert 0 < free.sum() < mask.sum()  # a clip bites


@every
@placements
def test_slices_of_a_shifted_loss_sum_to_the_whole(algorithm, placement):
    logp, *rest = shifted_batch()
    weight = seq_mean_token_mean(rest[2])
    whole, slope = loss_and_slope(algorithm, (logp, *rest), weight, placement)
    total, total_slope = 0.0, torch.zeros_like(slope)
    for rows in ([0], [2, 1]):
        part = [x[rows] for x in (logp, *rest)]
        share, own = loss_and_slope(algorithm, part, weight[rows], placement)
        total, total_slope[rows] = total + share, own
    assert_close(total, whole, **CLOSE)
    assert_close(total_slope, slope, **CLOSE)


def test_a_shift_and_a_truncated_weight_multiply():
    """In either order: both are factors of the weight."""
    _, old_logp, _, mask, gamma = shifted_batch()
    weight = seq_mean_token_mean(mask)
    factor = truncated_weight(old_logp, old_logp - 0.3, mask)
    _, first = moe.shifted(old_logp, weight * factor, mask, gamma, "after_clip", False)
    _, last = moe.shifted(old_logp, weight, mask, gamma, "after_clip", False)
    assert_close(first, last * factor, **CLOSE)
    assert_close(first, weight * gamma * math.exp(0.3) * mask, **CLOSE)


# Constants


@every
@placements
def test_no_gradient_passes_through_gamma(algorithm, placement):
    logp, old_logp, a, mask, gamma = shifted_batch()
    gamma.requires_grad_()
    old, weight = moe.shifted(
        old_logp, mask / 4, mask, gamma, placement, algorithm.one_ratio
    )
    assert not old.requires_grad
    assert not weight.requires_grad
    loss = algorithm.policy_loss(logp, old, a, mask, weight).loss
    assert grad(loss, gamma, allow_unused=True)[0] is None


@pytest.mark.parametrize("one_ratio", [True, False])
@placements
def test_padding_may_hold_any_shift(placement, one_ratio):
    _, old_logp, _, mask, gamma = shifted_batch()
    spoiled = torch.where(mask.bool(), gamma, math.nan)
    pairs = [
        moe.shifted(old_logp, mask / 4, mask, g, placement, one_ratio)
        for g in (gamma, spoiled)
    ]
    for clean, same in zip(*pairs, strict=True):
        assert torch.equal(clean, same)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
@placements
def test_a_mask_of_any_type_is_the_same_mask(placement, dtype):
    _, old_logp, _, mask, gamma = shifted_batch()
    pairs = [
        moe.shifted(old_logp, mask / 4, m, gamma, placement)
        for m in (mask, mask.to(dtype))
    ]
    for one, other in zip(*pairs, strict=True):
        assert torch.equal(one, other)


# Errors


def of_gamma(value, shape=(2, 3), **settings):
    mask = mask_of([3, 2])
    gamma = torch.full(shape, value)
    return moe.shifted(torch.zeros(2, 3), mask / 4, mask, gamma, **settings)


@pytest.mark.parametrize("value", [1.5, 1.01, 0.0, -0.5])
@placements
def test_a_shift_out_of_range_is_refused(value, placement):
    message = rf"^gamma must lie in \(0, 1\], got {value:g}: it is exp of minus a drift"
    with pytest.raises(ValueError, match=message):
        of_gamma(value, placement=placement)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@placements
def test_a_shift_that_is_not_finite_is_refused(value, placement):
    with pytest.raises(
        ValueError, match=rf"^gamma is {value} at row 0, token 0: it mu"
    ):
        of_gamma(value, placement=placement)


def test_a_shift_that_rounding_put_above_one_is_taken():
    old_logp, _ = of_gamma(1 + 1e-7)
    assert old_logp.abs().max() < 1e-6


def test_a_wrong_shape_or_placement_is_refused():
    message = r"gamma must have shape \(B, T\) = \(2, 3\), got \(2, 4\)"
    with pytest.raises(ValueError, match=message):
        of_gamma(0.9, shape=(2, 4))
    message = r"^placement must be one of .*before_clip.*after_clip.*, got 'between'$"
    with pytest.raises(ValueError, match=message):
        of_gamma(0.9, placement="between")


@pytest.mark.parametrize("floor", [0, -0.5, 1.2, math.nan])
def test_a_floor_out_of_range_is_refused(floor):
    message = rf"^floor must be a .*number in \(0, 1\], got {floor}$"
    with pytest.raises(ValueError, match=message):
        moe.router_shift(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2), floor)


@pytest.mark.parametrize("floor", [0.5, 1])
def test_the_floor_holds_gamma_up(floor):
    """A drift of 3 nats would give e^−3 = 0.05."""
    gamma = moe.router_shift(torch.zeros(1, 2, 2), torch.full((1, 2, 2), -3.0), floor)
    assert gamma.tolist() == [floor]
