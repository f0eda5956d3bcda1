"""The dense family after GRPO: hand values, closed forms, identities, errors.

What holds for any method (padding, order, micro-batches, extreme ratios, …) is tested
over the whole registry in test_algorithms.py.
"""

import math
import warnings

import pytest
import torch
from torch import tensor
from torch.autograd import grad, gradcheck
from torch.testing import assert_close

from refimpl.advantages import group_centred, leave_one_out
from refimpl.algorithms import ALGORITHMS, from_gate
from refimpl.curves import curve
from refimpl.normalisers import constant, token_mean
from tests.losses.test_algorithms import loss_of, mask_of, one_token, random_batch

pytestmark = pytest.mark.usefixtures("float64")
GRPO, DR_GRPO, GSPO, GSPO_TOKEN, DAPO, CISPO, GMPO, SAPO = (
    ALGORITHMS[name]
    for name in "grpo dr_grpo gspo gspo_token dapo cispo gmpo sapo".split()
)
WIDE = {"epsilon_low": 1.0, "epsilon_high": 1e9}
"""No clip for a method that clips ratios."""
TEN = {"rtol": 0, "atol": 1e-10}


@pytest.fixture(autouse=True)
def wide_bounds_for_sequences():
    """GSPO warns of bounds at token scale; here they mean no bounds."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*geometric mean over a whole")
        yield


def two_rows(ratios, advantages):
    """(loss of an algorithm, its gradient) on rows of two tokens and one."""
    mask = mask_of([2, 1])

    def run(algorithm, weight=None, **settings):
        logp = tensor(ratios).log().requires_grad_()
        batch = (logp, torch.zeros(2, 2), tensor(advantages), mask, weight)
        loss = loss_of(algorithm, *batch, **settings)
        return loss.item(), grad(loss, logp)[0]

    return run


# Hand-computed values. Ratios 2, ½ with A = +1 and 4 with A = −1 unless said


RATIOS = [[2.0, 0.5], [4.0, 1.0]]


def test_dr_grpo_by_hand():
    """min(2, 1.2) + ½ = 1.7 and −4; −(1.7 − 4)/(2·10) = 0.115."""
    weight = constant(mask_of([2, 1]), 10)
    loss, slope = two_rows(RATIOS, [1.0, -1.0])(DR_GRPO, weight)
    assert loss == pytest.approx(0.115, abs=1e-12)
    assert_close(slope, tensor([[0.0, -0.5 / 20], [4 / 20, 0.0]]), **TEN)


def test_gspo_by_hand():
    """s = √(2·½) = 1 and 4: −(1 − 4)/2 = 1.5; no clip bites (A < 0 rising is free)."""
    loss, slope = two_rows(RATIOS, [1.0, -1.0])(GSPO)
    assert loss == pytest.approx(1.5, abs=1e-12)
    # −A s/(B |o|) at every token of the response
    assert_close(slope, tensor([[-0.25, -0.25], [2.0, 0.0]]), **TEN)


@pytest.mark.parametrize("algorithm", [GSPO, GSPO_TOKEN])
def test_gspo_drops_a_response_as_a_whole(algorithm):
    """s = √1.002 ≈ 1.001 > 1.0004, A = +1: even the token that fell is dropped."""
    ratios = [[1.004, 1.002 / 1.004], [1.0, 1.0]]
    loss, slope = two_rows(ratios, [1.0, -1.0])(algorithm)
    assert loss == pytest.approx(-(1.0004 - 1) / 2, abs=1e-12)
    assert_close(slope, tensor([[0.0, 0.0], [0.5, 0.0]]), **TEN)


def test_gspo_token_lets_advantages_differ_within_a_response():
    """s = 1 with A = (1, −1): value 0; token gradients ∓1/4, GSPO's cancel."""
    run = two_rows(RATIOS, [[1.0, -1.0], [0.0, 0.0]])
    loss, slope = run(GSPO_TOKEN, **WIDE)
    assert loss == pytest.approx(0, abs=1e-12)
    assert_close(slope, tensor([[-0.25, 0.25], [0.0, 0.0]]), **TEN)
    assert_close(run(GSPO, **WIDE)[1], torch.zeros(2, 2), **TEN)


def test_dapo_by_hand():
    """min(1.25, 1.28) + min(½, ·) and −max(0.5, 0.8): −(1.25 + ½ − 0.8)/3."""
    loss, slope = two_rows([[1.25, 0.5], [0.5, 1.0]], [1.0, -1.0])(DAPO)
    assert loss == pytest.approx(-0.95 / 3, abs=1e-12)
    assert_close(slope, tensor([[-1.25 / 3, -0.5 / 3], [0.0, 0.0]]), **TEN)


def test_cispo_by_hand():
    """Weights min(r, 3): 2, ½ and 3; log π = log r, for π_old = 1."""
    loss, slope = two_rows(RATIOS, [1.0, -1.0])(CISPO, max_ratio=3.0)
    value = 2 * math.log(2) + 0.5 * math.log(0.5) - 3 * math.log(4)
    assert loss == pytest.approx(-value / 3, abs=1e-12)
    assert_close(slope, tensor([[-2 / 3, -0.5 / 3], [3 / 3, 0.0]]), **TEN)


@pytest.mark.parametrize(
    ("a", "r", "weight"),
    [
        (+1.0, 1.5, 0.0),  # risen past 1.28: masked
        (+1.0, 1.2, 1.2),
        (+1.0, 0.5, 0.5),  # a correction: kept
        (-1.0, 0.5, 0.0),  # fallen past 0.8: masked
        (-1.0, 0.9, 0.9),
        (-1.0, 9.0, 5.0),  # a correction: kept, and capped
    ],
)
def test_cispo_in_the_unified_form_masks_as_ppo_does(a, r, weight):
    masked = {"mask_epsilon_low": 0.2, "mask_epsilon_high": 0.28}
    assert one_token(CISPO, a, r, **masked)[1] == pytest.approx(weight * a)


def test_gmpo_by_hand():
    """A = +1: log 2 is held at 0.4, mean (0.4 − log 2)/2. A = −1, r = 4: free."""
    loss, slope = two_rows(RATIOS, [1.0, -1.0])(GMPO)
    mean = math.exp((0.4 - math.log(2)) / 2)
    assert loss == pytest.approx(-(mean - 4) / 2, abs=1e-12)
    # the held token is out of the gradient and stays in the mean
    assert_close(slope, tensor([[0.0, -mean / 4], [2.0, 0.0]]), **TEN)


@pytest.mark.parametrize(
    ("a", "z", "held"), [(1.0, 0.7, 0.3), (1.0, -0.7, -0.7), (-1.0, -0.7, -0.5)]
)
def test_gmpo_clips_the_log_ratio_on_one_side(a, z, held):
    bounds = {"epsilon_low": 0.5, "epsilon_high": 0.3}
    value, slope = one_token(GMPO, a, math.exp(z), **bounds)
    assert value == pytest.approx(a * math.exp(held))
    assert slope == pytest.approx(a * math.exp(held) if held == z else 0.0)


def test_sapo_by_hand():
    """f(r) = (4/τ) σ(τ(r−1)) with τ = 2 for A > 0 and 4 for A < 0."""
    taus = {"tau_pos": 2.0, "tau_neg": 4.0}
    loss, _ = two_rows(RATIOS, [1.0, -1.0])(SAPO, **taus)

    def sigma(x):
        return 1 / (1 + math.exp(-x))

    value = (2 * sigma(2) + 2 * sigma(-1)) / 2 - sigma(12)
    assert loss == pytest.approx(-value / 2, abs=1e-12)


def test_sapo_at_the_papers_tau():
    """τ = 1: w(0.8) = 0.990, never below 0.786 for r < 1; r·w peaks at 1.575."""
    weight = curve("sapo", 1.0, tensor([0.8, 1e-6])).coefficient / tensor([0.8, 1e-6])
    assert weight.tolist() == pytest.approx([0.990, 0.786], abs=5e-4)
    grid = torch.linspace(1, 4, 30_001)
    found = curve("sapo", 1.0, grid).coefficient
    assert found.max().item() == pytest.approx(1.575, abs=1e-3)
    assert grid[found.argmax()].item() == pytest.approx(2.06, abs=5e-3)


# Closed-form gradients


LENGTHS = [7, 30, 1, 20]


def closed_form(weight_on_score, mask, how="seq_mean_token_mean"):
    weight = {
        "seq_mean_token_mean": 1 / (4 * tensor(LENGTHS)[:, None]),
        "token_mean": 1 / 58,
        "constant": 1 / (4 * 50),
    }[how]
    return -weight_on_score * mask * weight


def by_autograd(algorithm, batch, **settings):
    return grad(loss_of(algorithm, *batch, **settings), batch[0])[0]


def mean_z(z, mask):
    return (z * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)


def test_gspo_gradient_is_the_closed_form():
    """A s 1[not clipped] ∇log π: one weight for the whole response."""
    logp, old, a, mask = random_batch(LENGTHS, spread=0.4)
    a = a[:, :1].expand_as(a)
    s = mean_z(logp.detach() - old, mask).exp()
    low, high = 0.02, 0.03
    active = torch.where(a > 0, s <= 1 + high, s >= 1 - low)
    assert 0 < active[:, 0].sum() < 4
    for algorithm in (GSPO, GSPO_TOKEN):
        found = by_autograd(
            algorithm, (logp, old, a, mask), epsilon_low=low, epsilon_high=high
        )
        assert_close(found, closed_form(a * s * active, mask), **TEN)


def test_gspo_token_gradient_with_token_advantages():
    """A_t s 1[not clipped at A_t] ∇log π_t."""
    logp, old, a, mask = random_batch(LENGTHS)
    s = mean_z(logp.detach() - old, mask).exp()
    active = torch.where(a > 0, s <= 1.03, s >= 0.98)
    found = by_autograd(
        GSPO_TOKEN, (logp, old, a, mask), epsilon_low=0.02, epsilon_high=0.03
    )
    assert_close(found, closed_form(a * s * active, mask), **TEN)


def test_dapo_and_dr_grpo_gradients_are_the_closed_forms():
    logp, old, a, mask = random_batch(LENGTHS)
    r = (logp.detach() - old).exp()
    active = torch.where(a > 0, r <= 1.28, r >= 0.8)
    found = by_autograd(DAPO, (logp, old, a, mask))
    assert_close(found, closed_form(a * r * active, mask, "token_mean"), **TEN)
    active = torch.where(a > 0, r <= 1.2, r >= 0.8)
    found = by_autograd(DR_GRPO, (logp, old, a, mask))
    assert_close(found, closed_form(a * r * active, mask, "constant"), **TEN)


def test_cispo_gradient_is_the_closed_form():
    """A min(r, cap): capped, never zero."""
    logp, old, a, mask = random_batch(LENGTHS)
    weight = (logp.detach() - old).exp().clamp(max=1.3)
    found = by_autograd(CISPO, (logp, old, a, mask), max_ratio=1.3)
    assert_close(found, closed_form(a * weight, mask, "token_mean"), **TEN)
    assert (found[(a != 0) & mask.bool()] != 0).all()


def test_gmpo_gradient_is_the_closed_form():
    """A GM 1[token not held] ∇log π, GM the mean with held tokens in it."""
    logp, old, a, mask = random_batch(LENGTHS, spread=0.6)
    a = a[:, :1].expand_as(a)
    z = logp.detach() - old
    free = torch.where(a > 0, z <= 0.4, z >= -0.4)
    held = torch.where(a > 0, z.clamp(max=0.4), z.clamp(min=-0.4))
    found = by_autograd(GMPO, (logp, old, a, mask))
    expected = closed_form(a * mean_z(held, mask).exp() * free, mask)
    assert_close(found, expected, **TEN)
    assert (~free & mask.bool()).any()


def test_sapo_gradient_is_the_closed_form():
    """A r sech²(τ(r − 1)/2) ∇log π."""
    logp, old, a, mask = random_batch(LENGTHS)
    r = (logp.detach() - old).exp()
    tau = torch.where(a > 0, 3.0, 5.0)
    found = by_autograd(SAPO, (logp, old, a, mask), tau_pos=3.0, tau_neg=5.0)
    weight = 1 / torch.cosh(tau * (r - 1) / 2) ** 2
    assert_close(found, closed_form(a * r * weight, mask), **TEN)


@pytest.mark.parametrize(
    "name", ["dr_grpo", "gspo", "dapo", "gmpo", "sapo"]
)  # sg[·] makes the others' loss no antiderivative of their gradient
def test_autograd_agrees_with_finite_differences(name):
    logp, old, a, mask = random_batch([4, 2, 5], seed=3)
    bounds = {"gspo": {"epsilon_low": 0.05, "epsilon_high": 0.05}}.get(name, {})

    def loss(x):
        return loss_of(ALGORITHMS[name], x, old, a[:, :1].expand_as(a), mask, **bounds)

    assert gradcheck(loss, logp)


# Identities


def test_unclipped_gmpo_is_unclipped_gspo_at_every_policy():
    logp, old, a, mask = random_batch(LENGTHS, spread=1.5)
    a = a[:, 0]
    far = {"epsilon_low": 99.0, "epsilon_high": 99.0}
    gmpo = loss_of(GMPO, logp, old, a, mask, **far)
    gspo = loss_of(GSPO, logp, old, a, mask, **WIDE)
    assert_close(gmpo, gspo, **TEN)
    assert_close(grad(gmpo, logp)[0], grad(gspo, logp)[0], **TEN)


def test_gspo_token_is_gspo_if_and_only_if_advantages_are_constant():
    logp, old, a, mask = random_batch(LENGTHS)
    bounds = {"epsilon_low": 0.02, "epsilon_high": 0.03}

    def both(advantages):
        return [
            by_autograd(one, (logp, old, advantages, mask), **bounds)
            for one in (GSPO, GSPO_TOKEN)
        ]

    same, token = both(a[:, :1].expand_as(a)), both(a)
    assert_close(same[0], same[1], **TEN)
    assert (token[0] - token[1]).abs().max() > 1e-2


def test_sapo_without_a_gate_is_unclipped_grpo():
    """τ → 0: the gradient, not the value, which has an offset of 2/τ."""
    logp, old, a, mask = random_batch(LENGTHS)
    tiny = {"tau_pos": 1e-5, "tau_neg": 1e-5}
    sapo = by_autograd(SAPO, (logp, old, a, mask), **tiny)
    grpo = by_autograd(GRPO, (logp, old, a, mask), **WIDE)
    assert_close(sapo, grpo, rtol=0, atol=1e-9)


def test_sapo_weighs_one_at_ratio_one_whatever_tau():
    for tau in (0.1, 1.0, 8.8, 50.0):
        slope = one_token(SAPO, 1.0, 1.0, tau_pos=tau)[1]
        assert slope == pytest.approx(1, abs=1e-12)


def test_sapo_damps_corrections_that_the_min_lets_through():
    """A > 0, r < 1 and A < 0, r > 1: PPO's weight is 1, SAPO's is not."""
    for a, r in ((1.0, 0.5), (-1.0, 1.5)):
        assert one_token(GRPO, a, r)[1] == pytest.approx(a * r)
        soft = one_token(SAPO, a, r, tau_pos=8.8, tau_neg=8.8)[1]
        assert abs(soft) < 0.2 * r


def test_cispo_masked_and_uncapped_has_ppos_gradient():
    """The unified form with r̂ = r; with a cap that binds it has not."""
    logp, old, a, mask = random_batch(LENGTHS)
    masked = {"mask_epsilon_low": 0.2, "mask_epsilon_high": 0.28}
    ppo = by_autograd(DAPO, (logp, old, a, mask))
    found = by_autograd(CISPO, (logp, old, a, mask), max_ratio=1e9, **masked)
    assert_close(found, ppo, **TEN)
    capped = by_autograd(CISPO, (logp, old, a, mask), max_ratio=1.1, **masked)
    assert (capped - ppo).abs().max() > 1e-4


def test_on_policy_dapo_and_cispo_coincide():
    logp, _, a, mask = random_batch(LENGTHS)
    batch = (logp, logp.detach(), a, mask)
    assert_close(by_autograd(DAPO, batch), by_autograd(CISPO, batch), **TEN)


def test_dapo_is_ppo_with_more_room_above():
    batch = random_batch(LENGTHS)
    same = {"epsilon_low": 0.2, "epsilon_high": 0.28}
    dapo = loss_of(DAPO, *batch)
    assert dapo.item() == loss_of(ALGORITHMS["ppo"], *batch, **same).item()
    grpo = loss_of(GRPO, *batch, token_mean(batch[-1]), **same)
    assert dapo.item() == grpo.item()


def test_leave_one_out_is_centred_times_g_over_g_minus_one():
    rewards, group = tensor([1.0, 0, 0, 1, 1, 0.5]), tensor([0, 0, 0, 1, 1, 1])
    expected = 3 / 2 * group_centred(rewards, group)
    assert_close(leave_one_out(rewards, group), expected, **TEN)


@pytest.mark.parametrize("name", ["dr_grpo", "gspo", "gspo_token", "dapo"])
def test_dual_clip_floors_what_a_bad_token_can_cost(name):
    wide = WIDE if name.startswith("gspo") else {}
    value, slope = one_token(ALGORITHMS[name], -1.0, 9.0, **wide)
    assert (value, slope) == pytest.approx((-9, -9))
    value, slope = one_token(ALGORITHMS[name], -1.0, 9.0, dual_clip=3.0, **wide)
    assert (value, slope) == pytest.approx((-3, 0))


# What the clip counts


def counted(algorithm, **settings):
    """(low, high): one row of A > 0 and one of A < 0, ratios 9, 1 and 1/9 in each."""
    logp = tensor([[9.0, 1.0, 1 / 9]] * 2).log()
    mask = torch.ones(2, 3)
    batch = (logp, torch.zeros(2, 3), tensor([1.0, -1.0]), mask)
    metrics = algorithm.policy_loss(*batch, **settings).metrics
    return metrics["clip_ratio/low_mean"], metrics["clip_ratio/high_mean"]


def test_gmpo_counts_the_clips_that_stop_a_gradient():
    assert counted(GMPO) == pytest.approx((1 / 6, 1 / 6))


def test_cispo_counts_capped_weights_of_both_signs_and_masked_tokens_of_one():
    assert counted(CISPO) == pytest.approx((0, 2 / 6))
    masked = {"mask_epsilon_low": 0.2, "mask_epsilon_high": 0.28}
    assert counted(CISPO, **masked) == pytest.approx((1 / 6, 1 / 6))


# A gate of one's own


def sech2(r, advantages):
    return 1 / torch.cosh((torch.where(advantages > 0, 1.0, 1.05) * (r - 1)) / 2) ** 2


def test_a_gate_of_ones_own_has_sapos_gradient_if_it_is_sapos():
    logp, old, a, mask = random_batch(LENGTHS)
    found = by_autograd(from_gate(sech2), (logp, old, a, mask))
    assert_close(found, by_autograd(SAPO, (logp, old, a, mask)), **TEN)


def test_no_gradient_passes_through_the_gate():
    def steep(r, advantages):
        return (50 * (r - 1)).exp().clamp(max=1e3)

    value, slope = one_token(from_gate(steep), 1.0, 1.02)
    assert slope == pytest.approx(1.02 * math.e)
    assert value == pytest.approx(slope * math.log(1.02))


@pytest.mark.parametrize(
    ("gate", "error", "message"),
    [
        (lambda r, a: 1.0, TypeError, "must return a tensor, got float"),
        (lambda r, a: r.mean(), ValueError, r"one number per token, shape \(1, 1\)"),
        (lambda r, a: r / 0 * 0, ValueError, r"the gate is nan at r = 2, advantage 1"),
        (lambda r, a: r / 0, ValueError, "the gate is inf"),
    ],
)
def test_a_gate_that_is_none_is_refused(gate, error, message):
    with pytest.raises(error, match=message):
        one_token(from_gate(gate), 1.0, 2.0)


def test_a_gate_may_be_anything_on_padding():
    def gate(r, advantages):
        return torch.where(advantages == 0, math.nan, 1.0)

    logp, old, _, mask = random_batch([3, 1])
    loss = loss_of(from_gate(gate), logp, old, tensor([1.0, -1.0]), mask)
    assert torch.isfinite(grad(loss, logp)[0]).all()


# Settings


@pytest.mark.parametrize("algorithm", [GSPO, GSPO_TOKEN])
def test_gspo_warns_of_bounds_at_token_scale(algorithm):
    warnings.resetwarnings()
    with pytest.warns(UserWarning, match="its paper uses 3e-4 and 4e-4"):
        one_token(algorithm, 1.0, 1.0, epsilon_low=0.2, epsilon_high=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one_token(algorithm, 1.0, 1.0)


@pytest.mark.parametrize("name", ["gspo", "gspo_token", "dapo", "gmpo", "rspo"])
def test_epsilon_sets_both_bounds(name):
    batch = random_batch([3, 1, 4])
    loss = ALGORITHMS[name].policy_loss
    assert "epsilon" in ALGORITHMS[name].names
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both = loss(*batch, epsilon=0.1).loss
        assert both == loss(*batch, epsilon_low=0.1, epsilon_high=0.1).loss
        upper = loss(*batch, epsilon=0.1, epsilon_high=0.15).loss
        assert upper == loss(*batch, epsilon_low=0.1, epsilon_high=0.15).loss
        assert not torch.equal(both, loss(*batch).loss)


def test_gspo_warns_of_ppo_s_epsilon_too():
    with pytest.warns(UserWarning, match="its paper uses 3e-4 and 4e-4"):
        ALGORITHMS["gspo"].policy_loss(*random_batch([3, 1]), epsilon=0.2)


def test_epsilon_means_nothing_where_there_are_no_two_bounds():
    for name in ("cispo", "sapo"):
        with pytest.raises(TypeError, match=f"{name} has no setting 'epsilon'"):
            ALGORITHMS[name].policy_loss(*random_batch([3, 1]), epsilon=0.2)


def test_dapo_takes_any_two_bounds():
    """Clip-higher is its default, not a rule: a narrower upper bound is a choice."""
    bounds = {"epsilon_low": 0.28, "epsilon_high": 0.1}
    assert one_token(DAPO, 1.0, 1.2, **bounds) == pytest.approx((1.1, 0))
    assert one_token(DAPO, -1.0, 0.75, **bounds) == pytest.approx((-0.75, -0.75))


@pytest.mark.parametrize(
    ("name", "setting", "value", "expected"),
    [
        ("sapo", "tau_pos", 0.0, "a number > 0, got 0.0"),
        ("sapo", "tau_neg", -1.0, "a number > 0, got -1.0"),
        ("sapo", "tau_neg", math.nan, "a finite number > 0, got nan"),
        ("sapo", "tau_pos", math.inf, "a finite number > 0, got inf"),
        ("cispo", "max_ratio", 0.28, "a number ≥ 1, got 0.28"),
        ("cispo", "max_ratio", math.inf, "a finite number ≥ 1, got inf"),
        ("cispo", "mask_epsilon_low", 0, "a number > 0 or None, got 0"),
        ("cispo", "mask_epsilon_high", -1, "a number > 0 or None, got -1"),
        ("gmpo", "epsilon_low", 0.0, "a number > 0, got 0.0"),
        ("gmpo", "epsilon_high", -0.4, "a number > 0, got -0.4"),
        ("gmpo", "epsilon", 0, "a number > 0, got 0"),
        ("rspo", "epsilon_low", 0.0, "a number > 0, got 0.0"),
        ("gspo", "epsilon_low", -3e-4, "a number in (0, 1], got -0.0003"),
        ("gspo_token", "epsilon_high", 0.0, "a number > 0, got 0.0"),
        ("gspo", "dual_clip", 0.5, "a number > 1 or None, got 0.5"),
        ("dapo", "epsilon_low", -0.1, "a number in (0, 1], got -0.1"),
        ("dr_grpo", "epsilon", 1.5, "a number in (0, 1], got 1.5"),
    ],
)
def test_settings_out_of_range(name, setting, value, expected):
    with pytest.raises(ValueError, match="must be") as caught:
        loss_of(ALGORITHMS[name], *random_batch([3, 1]), **{setting: value})
    assert str(caught.value) == f"{setting} must be {expected}"


@pytest.mark.parametrize("name", ["gmpo", "rspo"])
def test_bounds_on_the_log_ratio_may_exceed_one(name):
    assert one_token(ALGORITHMS[name], -1.0, math.exp(-1.5), epsilon=2.0)[1] != 0
    assert one_token(ALGORITHMS[name], -1.0, math.exp(-2.5), epsilon=2.0)[1] == 0


def test_every_method_says_what_it_is_in_trl_and_verl():
    for name, algorithm in ALGORITHMS.items():
        assert name == "rspo" or (algorithm.trl and algorithm.verl), name
