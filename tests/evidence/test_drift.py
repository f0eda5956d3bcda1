"""What is said of how far K updates went, computed again by hand."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from experiments.drift import Drift, Pace, shared
from refimpl import collect, log_probs, updates
from refimpl.models import weights
from refimpl.moe import routed
from tests.worlds import fixed_noise, prepared, random_moe, small_run, warm_model


@pytest.mark.parametrize("moe", [False, True])
def test_drift_is_measured_on_the_rollouts_tokens(moe):
    settings = {"replay": "R2", "model": random_moe()} if moe else {}
    run = prepared(learning_rate=6e-4, reward=fixed_noise, **settings)
    batch, _ = collect(run, 0)
    first = batch.rollout.group == batch.rollout.group[0]  # neither good nor bad
    advantages = batch.advantages.masked_fill(first[:, None], 0.0)
    run.batch = batch = replace(batch, advantages=advantages)
    hook, start = Drift(run.model), weights(run.model)
    updates(run, batch, 0)
    run.history.rows.append({})
    hook(run, 0)
    rollout = batch.rollout
    replayed = routed(run.model, experts=rollout.experts) if moe else nullcontext()
    with torch.no_grad(), replayed:
        logp, _ = log_probs(run.model, rollout)
    moved = (logp - batch.old_logp).double()
    z = [row[: int(n)] for row, n in zip(moved, rollout.length)]
    every = torch.cat(z)
    within = torch.stack([row.var(correction=0) for row in z])
    expected = {
        "drift/kl": -every.mean(),
        "drift/step": (weights(run.model) - start).double().norm(),
        "drift/within_small": (within < 0.02).double().mean(),
    }
    assert within.max() > 0.02 > within.min()  # else a share says nothing
    for name, sign in (("good", 1), ("bad", -1)):
        side = sign * batch.advantages[:, 0] > 0
        rows = [row for row, chosen in zip(z, side) if chosen]
        expected[f"drift/{name}"] = torch.cat(rows).mean()
    common = shared(rollout, batch.advantages)
    assert 0 < common.sum() < rollout.mask.sum()
    expected["drift/shared"] = moved[common].mean()
    assert run.history.rows == [
        {name: pytest.approx(x.item(), rel=1e-3) for name, x in expected.items()}
    ]


def test_a_step_begins_where_the_one_before_ended_and_nothing_else_changes(tmp_path):
    """Of a resumed run nobody saw where the first one began."""
    passed = [weights(warm_model())]
    look = [Drift(warm_model()), lambda run, _: passed.append(weights(run.model))]
    plain, measured = small_run(), small_run(hooks=look)
    steps = [(b - a).norm().item() for a, b in pairwise(passed)]
    assert measured["drift/step"] == pytest.approx(steps) and min(steps) > 0
    for row, longer in zip(plain.rows, measured.rows, strict=True):
        columns = set(row) - {"step_time"}
        assert {k: row[k] for k in columns} == {k: longer[k] for k in columns}
    small_run(rollouts=1, checkpoint_dir=tmp_path)
    settings = {"checkpoint_dir": tmp_path, "resume": True}
    later = small_run(hooks=[Drift(warm_model())], **settings)
    found = [row.get("drift/step") for row in later.rows]
    assert found == [None, None, pytest.approx(steps[2])]


@pytest.mark.parametrize(
    ("moved", "step", "rate"),
    [
        (0.5, 0, 2e-4),  # twice as far as the other run: half the rate
        (0.5, 1, 8e-4),  # half as far
        (0.0, 0, 4e-4),  # nothing moved, nothing to compare
        (None, 0, 4e-4),  # nobody measured it
        (0.5, 2, 4e-4),  # the other run had ended
    ],
)
def test_the_rate_follows_how_far_another_run_went(moved, step, rate):
    groups = [{"lr": 4e-4}, {"lr": 4e-4}]
    history = SimpleNamespace(rows=[{"drift/step": moved}])
    optimizer = SimpleNamespace(param_groups=groups)
    run = SimpleNamespace(history=history, optimizer=optimizer)
    Pace([0.25, 1.0])(run, step)
    assert [group["lr"] for group in groups] == [pytest.approx(rate)] * 2


@pytest.mark.parametrize(
    ("tokens", "group", "good", "expected"),
    [
        # 1 2 is shared with the good response; another group's is none of its business
        ([[1, 2, 3], [1, 2, 4]], [0, 0], [1, -1], [0, 2]),
        ([[1, 2, 3], [1, 2, 4]], [0, 1], [1, -1], [0, 0]),
        # what comes again after they have parted has another context
        ([[1, 2, 3], [1, 5, 3]], [0, 0], [1, -1], [0, 1]),
        # with the first good response it has one token in common, with the second two
        ([[1, 5, 3], [1, 2, 3], [1, 2, 4]], [0, 0, 0], [1, 1, -1], [0, 0, 2]),
        # no good response is there
        ([[1, 2, 3], [1, 2, 3]], [0, 0], [-1, -1], [0, 0]),
        # nor does what lies behind the end: 0 is padding
        ([[1, 2, 0], [1, 2, 0]], [0, 0], [1, -1], [0, 2]),
    ],
)
def test_tokens_are_shared_up_to_where_responses_part(tokens, group, good, expected):
    ids, advantages = torch.tensor(tokens), torch.tensor(good).float()[:, None]
    mask, group = (ids != 0).float(), torch.tensor(group)
    common = shared(SimpleNamespace(tokens=ids, mask=mask, group=group), advantages)
    assert common.tolist() == [[t < count for t in range(3)] for count in expected]
