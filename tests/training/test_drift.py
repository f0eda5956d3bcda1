"""What is said of how far K updates went, computed again by hand."""

import pytest
import torch

from refimpl.collect import collect
from refimpl.drift import weights
from refimpl.scoring import log_probs
from refimpl.update import update
from tests.worlds import fixed_noise, prepared, random_moe, small_run


@pytest.mark.parametrize("moe", [False, True])
def test_drift_is_measured_on_the_rollouts_own_tokens(moe):
    settings = {"replay": "R2", "model": random_moe()} if moe else {}
    run = prepared(
        measure_drift=True, learning_rate=6e-4, reward=fixed_noise, **settings
    )
    batch, _ = collect(run, 0)
    start = weights(run.model)
    found = update(run, batch, 0)
    rollout = batch.rollout
    with torch.no_grad(), run.routed(rollout.experts if moe else None):
        logp, _ = log_probs(run.model, rollout)
    z = [
        (new - old)[: int(n)].double()
        for new, old, n in zip(logp, batch.old_logp, rollout.length)
    ]
    every, means = torch.cat(z), torch.stack([row.mean() for row in z])
    within = torch.stack([row.var(correction=0) for row in z])
    expected = {
        "drift/kl": -every.mean(),
        "drift/step": (weights(run.model) - start).double().norm(),
        "drift/tokens": every.var(correction=0),
        "drift/responses": means.var(correction=0),
        "drift/within": within.mean(),
        "drift/within_small": (within < 0.02).double().mean(),
    }
    assert within.max() > 0.02 > within.min()  # else a share says nothing
    for name, value in expected.items():
        assert found[name] == pytest.approx(value.item(), rel=1e-3), name


def test_measuring_changes_nothing_else():
    plain, measured = small_run("grpo"), small_run("grpo", measure_drift=True)
    for one, other in zip(plain.rows, measured.rows, strict=True):
        assert other["drift/step"] > 0 and "drift/step" not in one
        same = set(one) - {"step_time"}
        assert {k: one[k] for k in same} == {k: other[k] for k in same}
