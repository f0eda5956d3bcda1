"""Objects that control entropy: by hand, and however a mini-batch is cut."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import tensor

from refimpl.algorithms import LossInputs
from refimpl.entropy import AdaptiveEntropy, ClipCov, KLCov, TopEntropy, covariance
from refimpl.logprobs import Reading
from refimpl.rollout import Batch
from tests.worlds import (
    fixed_noise,
    largest_difference,
    rollout_of,
    small_run,
)

H = [0.9, 0.05, 0.02, 0.6, 0.01, 0.03, 0.7, 0.04, 0.02, 0.01]
PAID = [1.5, 1.5, -0.5, -0.5, -0.5, -0.5]
LOGP = [-0.01, -3, -0.01, -0.01, -0.01, -4]


def batch(entropy, paid=None, logp=None, hole=0) -> Batch:
    """One response, behind a hole whose numbers are large, and before padding."""
    n = len(entropy)

    def spread(x, filler):
        return tensor([[filler] * hole + [*x] + [filler]]).float()

    mask = spread([1] * n, 0.0)
    rollout = rollout_of(mask, entropy=spread(entropy, 2.0))
    zeros = [0.0] * n
    old, a = spread(logp or zeros, -9.0), spread(paid or zeros, 7.0)
    return Batch(rollout, mask, old, a, token_count=mask.sum())


@pytest.mark.parametrize("hole", [0, 5])
def test_the_tokens_of_highest_entropy_by_hand(hole):
    """τ = .6 + .2 · (.7 − .6); with observations in the quantile none would be left."""
    mini = batch(H, hole=hole)
    kept = TopEntropy(0.2).kept(mini) & mini.mask.bool()
    assert (kept[0].nonzero()[:, 0] - hole).tolist() == [0, 6]
    known = mini.old_logp, mini.old_logp, mini.advantages, mini.mask
    inputs = LossInputs(*known, mini.mask / 10, {})
    weight = TopEntropy(0.2)(mini, Reading(inputs.logp, inputs.logp), inputs).weight
    assert weight[kept].tolist() == pytest.approx([0.1] * 2)  # of 10, not of 2
    assert weight.sum() == pytest.approx(0.2)
    same = batch([0.0] * 4, hole=hole)
    assert (TopEntropy(0.2).kept(same) & same.mask.bool()).sum() == 4


def two_rows(entropy, mask) -> Batch:
    """Two responses to one prompt, Â = 1 and −1; the mask is the loss's alone."""
    one = torch.ones_like(mask)
    rollout = rollout_of(one, entropy=entropy, group=tensor([0, 0]))
    advantages = one * tensor([[1.0], [-1.0]])
    return Batch(rollout, mask, 0 * one, advantages, token_count=mask.sum())


def test_a_response_that_was_filtered_out_moves_no_quantile_and_is_not_drawn():
    mini = two_rows(tensor([[1.0, 2], [9, 8]]), tensor([[1.0, 1], [0, 0]]))
    assert TopEntropy(0.5).kept(mini)[0].tolist() == [False, True]
    # C = 0 outside the mask lies between the bounds, too
    mask = tensor([[1.0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    for seed in range(8):
        drops = ClipCov(share=0.34, low=-0.5, high=5.0, seed=seed)
        dropped = ~drops.kept(two_rows(0 * mask, mask))
        assert dropped.sum() == (dropped & mask.bool()).sum() == 3


def test_the_tokens_of_highest_entropy_among_more_than_2_to_the_24():
    """Which is more than `torch.quantile` takes."""
    entropy = torch.arange(2**24 + 8.0).view(2, -1)
    kept = TopEntropy(0.25).kept(two_rows(entropy, torch.ones_like(entropy)))
    assert kept.sum() == pytest.approx(2**22, abs=8)


@pytest.mark.parametrize("hole", [0, 2])
def test_the_covariance_by_hand_is_largest_for_a_rare_bad_token(hole):
    mini = batch(PAID, PAID, LOGP, hole)
    c = covariance(mini)[mini.mask.bool()]
    expected = [1.5511, -2.4356, -0.7756, -0.7756, -0.7756, 1.8844]
    assert c.tolist() == pytest.approx(expected, abs=1e-4)
    assert covariance(mini)[mini.mask == 0].abs().max() == 0
    largest = KLCov().chosen(mini)[mini.mask.bool()]
    assert largest.tolist() == [False] * 5 + [True]  # by |C| it would be the second
    assert KLCov(0.5).chosen(mini).sum() == 3
    drawn = set()
    for seed in range(20):
        torch.manual_seed(seed)  # not the generator that is used
        same = ClipCov(seed=3).kept(mini)
        assert torch.equal(same, ClipCov(seed=3).kept(mini))
        kept = ClipCov(seed=seed).kept(mini)[mini.mask.bool()]
        drawn.add((~kept).nonzero()[:, 0].item())  # one, and no other
    assert drawn == {0, 5}
    assert ClipCov(low=3.0).kept(mini).all()


def test_kl_cov_by_hand_and_where_nothing_moved():
    """β |log r| on the chosen token alone; rounding is no movement."""
    mini = batch(PAID, PAID, LOGP)
    for z, expected in ((0.3, 2 * 0.3 / 6), (-0.3, 2 * 0.3 / 6), (1e-6, 0.0)):
        logp = (mini.old_logp + z).requires_grad_()
        added, _ = KLCov(beta=2.0)(mini, Reading(logp, logp), mini.mask / 6)
        assert added.item() == pytest.approx(expected, abs=1e-6)
        (slope,) = torch.autograd.grad(added, logp)
        sign = 0 if expected == 0 else (1 if z > 0 else -1)
        wanted = [0] * 5 + [sign * 2 / 6, 0]
        assert slope[0].tolist() == pytest.approx(wanted, abs=1e-6)


def test_the_adaptive_bonus_by_hand():
    """It applies the c, and the H, of the update before; two micro-batches are one. At
    the target c still grows, up to `most`."""
    bonus, after, applied = AdaptiveEntropy(0.25, most=0.01).for_run(None), [], []
    weight = torch.ones(1, 2)
    for h in (0.30, 0.27, 0.25, 0.17, 0.17, 0.26, 0.18):
        mini = batch([h])
        logp = tensor([[h, 0.0]])
        for tokens in (2.0, 2.0):  # each has half of the mini-batch's tokens
            part = replace(mini, token_count=tensor(tokens))
            _, metrics = bonus(part, Reading(logp, logp), weight)
        applied.append(2 * metrics["entropy_coefficient"].item())
        bonus.end_update()
        after.append(bonus.c)
    assert after == pytest.approx([0, 0, 0.005, 0.01, 0.01, 0.005, 0.01])
    assert applied == pytest.approx([0, 0, 0, 0.005, 0.01, 0.01, 0])
    assert (AdaptiveEntropy().target, AdaptiveEntropy().most) == (0.2, 1)


OBJECTS = {
    "top entropy": {"corrections": [TopEntropy(0.3)]},
    "clip-cov": {"corrections": [ClipCov(0.1, low=0.1)]},
    "kl-cov": {"loss_terms": [KLCov(0.2, beta=3.0)]},
    "adaptive": {"loss_terms": [AdaptiveEntropy(target=5.0, step=0.1)]},
}


def run(size=16, **objects):
    given = {"dtype": "float64", "rollouts": 1, "reward": fixed_noise}
    return small_run(micro_batch_size=size, **given, **objects)


plain = cache(run)


@pytest.mark.parametrize("name", OBJECTS)
def test_micro_batches_change_nothing_and_the_object_does(name):
    one, two = run(**OBJECTS[name]), run(3, **OBJECTS[name])
    assert largest_difference(one.model, two.model) < 1e-9
    assert largest_difference(one.model, plain().model) > 1e-6
    assert run(**OBJECTS[name]) == one, "something is left in the object"
