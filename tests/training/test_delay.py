"""A sampler that lags behind the policy, as in asynchronous training."""

import pytest
import torch
from torch.testing import assert_close

from refimpl import collect as collecting
from refimpl.collect import collect
from refimpl.importance import truncated_weight
from refimpl.models import weights, with_weights
from refimpl.scoring import log_probs
from refimpl.trainer import StalenessError
from refimpl.update import update
from tests.worlds import (
    ROUNDING,
    always_one,
    fixed_noise,
    prepared,
    random_moe,
    same_weights,
    small_run,
)

DELAYED = {"learning_rate": 2e-3, "reward": fixed_noise}


def rollouts(run, n):
    """Batches and the policy's weights before each, with updates between them."""
    for step in range(n):
        before = weights(run.model)
        batch, metrics = collect(run, step)
        yield before, batch, metrics
        assert torch.equal(weights(run.model), before)  # sampling changed nothing
        update(run, batch, step)


@torch.no_grad()
def scored(run, row, rollout):
    with with_weights(run.model, row):
        return log_probs(run.model, rollout)[0]


@pytest.mark.parametrize("delay", [1, 2])
def test_the_sampler_has_the_weights_of_so_many_rollouts_ago(delay):
    run, seen = prepared(sampler_delay=delay, **DELAYED), []
    for step, (before, batch, metrics) in enumerate(rollouts(run, 5)):
        seen.append(before)
        lagging = seen[max(0, step - delay)]
        near = {"rtol": 0, "atol": 2 * ROUNDING}
        assert_close(batch.rollout.logp, scored(run, lagging, batch.rollout), **near)
        assert_close(batch.old_logp, scored(run, before, batch.rollout), **near)
        gap = (batch.rollout.logp - batch.old_logp).abs().max()
        assert gap > 0.01 if step else gap < 2 * ROUNDING
        assert (metrics["sampling/kl"] > 1e-4) == (step > 0)
        assert len(run.past) == min(step, delay) + 1


def test_without_a_delay_nothing_is_kept_and_nothing_changes():
    run = prepared(**DELAYED)
    for _, batch, metrics in rollouts(run, 2):
        assert run.past == [] and "sampling/kl" not in metrics
        assert batch.old_logp is batch.rollout.logp


def test_a_sampler_that_is_trusted_makes_ratios_that_span_the_delay():
    run = prepared(sampler_delay=1, trust_sampler=True, **DELAYED)
    (*_,), (before, batch, _) = rollouts(run, 2)
    z = scored(run, before, batch.rollout) - batch.old_logp
    assert batch.old_logp is batch.rollout.logp
    assert (z * batch.mask).abs().max() > 0.01


def test_truncated_weights_are_the_policys_ratio_to_the_lagging_sampler():
    run = prepared(sampler_delay=1, max_rollout_weight=1.0, **DELAYED)
    (*_,), (_, batch, _) = rollouts(run, 2)
    weight = truncated_weight(batch.old_logp, batch.rollout.logp, batch.mask, 1.0)
    inside = weight[batch.mask.bool()]
    assert inside.max() == 1 and inside.min() < 0.99


def test_weights_come_back_if_sampling_fails(monkeypatch):
    run = prepared(sampler_delay=2, **DELAYED)
    for _ in rollouts(run, 2):
        pass
    before = weights(run.model)
    monkeypatch.setattr(collecting, "sample", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        collect(run, 2)
    assert torch.equal(weights(run.model), before)


@pytest.mark.parametrize("moe", [False, True])
def test_a_run_that_lags_is_resumed_bit_for_bit(moe, tmp_path):
    own = {"model": random_moe(), "replay": "R3"} if moe else {}
    settings = {"sampler_delay": 2, "eval_every": 2, **DELAYED, **own}
    whole = small_run(rollouts=5, **settings)
    settings["checkpoint_dir"] = tmp_path
    small_run(rollouts=2, **settings)
    resumed = small_run(rollouts=5, resume=True, **settings)
    assert resumed == whole and same_weights(resumed.model, whole.model)
    plain = small_run(
        rollouts=5, **(settings | {"sampler_delay": 0, "overwrite": True})
    )
    assert plain != whole


def test_sampling_with_other_weights_writes_nothing_into_the_policys_memory():
    run = prepared(**DELAYED)
    p = next(run.model.parameters())
    memory, before = p.data, p.detach().clone()
    with with_weights(run.model, 0 * weights(run.model)):
        assert p.abs().max() == 0 and torch.equal(memory, before)
    assert p.data_ptr() == memory.data_ptr()


def test_rounded_weights_are_rounded_from_the_lagging_ones():
    run = prepared(sampler_delay=1, rollout_dtype="int8", **DELAYED)
    (first, *_), (before, batch, _) = rollouts(run, 2)
    near = scored(run, first, batch.rollout) - batch.rollout.logp
    far = scored(run, before, batch.rollout) - batch.rollout.logp
    assert 0 < (near * batch.mask).abs().mean() < (far * batch.mask).abs().mean()


def test_a_policy_that_does_not_move_is_still_found_out():
    with pytest.raises(StalenessError):
        small_run(rollouts=5, sampler_delay=1, reward=always_one)
