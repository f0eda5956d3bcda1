"""What is said of how far K updates went, computed again by hand."""

import pytest
import torch

from refimpl.collect import collect
from refimpl.drift import shared
from refimpl.models import weights
from refimpl.rollout import Rollout
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
    first = batch.rollout.group == batch.rollout.group[0]  # neither good nor bad
    batch.advantages = batch.advantages.masked_fill(first[:, None], 0.0)
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
    good = batch.advantages[:, 0] > 0
    for name, side in (("good", good), ("bad", batch.advantages[:, 0] < 0)):
        expected[f"drift/{name}"] = torch.cat(
            [row for row, own in zip(z, side) if own]
        ).mean()
    own = [shared_by_hand(batch, n) for n in range(len(z))]
    expected["drift/shared"] = torch.cat([row[:n] for row, n in zip(z, own)]).mean()
    assert 0 < sum(own) < sum(map(len, z))
    assert within.max() > 0.02 > within.min()  # else a share says nothing
    for name, value in expected.items():
        assert found[name] == pytest.approx(value.item(), rel=1e-3), name


def shared_by_hand(batch, row):
    """How many tokens a bad response begins with as some good one does."""
    rollout, advantages = batch.rollout, batch.advantages[:, 0]
    if advantages[row] >= 0:
        return 0
    said = [
        [int(t) for t, own in zip(tokens, mask) if own]
        for tokens, mask in zip(rollout.tokens, rollout.mask)
    ]
    good = [
        said[other]
        for other in range(len(said))
        if rollout.group[other] == rollout.group[row] and advantages[other] > 0
    ]
    return max(
        next(
            (n for n, (a, b) in enumerate(zip(said[row], other)) if a != b), len(other)
        )
        for other in good
    )


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
        # a group of equal rewards pulls at nothing
        ([[1, 2, 3], [1, 2, 3]], [0, 0], [0, 0], [0, 0]),
        ([[1, 2, 3], [1, 2, 3]], [0, 0], [-1, -1], [0, 0]),
    ],
)
def test_tokens_are_shared_up_to_where_responses_part(tokens, group, good, expected):
    n, width = len(tokens), len(tokens[0])
    rollout = Rollout(
        ids=torch.tensor([[9, *row] for row in tokens]),
        prompt_length=torch.ones(n, dtype=torch.long),
        mask=torch.ones(n, width),
        logp=torch.zeros(n, width),
        entropy=torch.zeros(n, width),
        truncated=torch.zeros(n, dtype=torch.bool),
        group=torch.tensor(group),
    )
    advantages = torch.tensor(good).float()[:, None].expand(n, width)
    found = shared(rollout, advantages)
    assert found.sum(-1).tolist() == expected
    assert (found.long().diff(dim=-1) <= 0).all()  # from the first on


def test_what_lies_behind_a_responses_end_is_shared_with_nothing():
    rollout = Rollout(
        ids=torch.tensor([[9, 1, 2, 0], [9, 1, 2, 0]]),
        prompt_length=torch.ones(2, dtype=torch.long),
        mask=torch.tensor([[1.0, 1, 0], [1, 1, 0]]),
        logp=torch.zeros(2, 3),
        entropy=torch.zeros(2, 3),
        truncated=torch.zeros(2, dtype=torch.bool),
        group=torch.tensor([0, 0]),
    )
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 3)
    assert shared(rollout, advantages).tolist() == [[False] * 3, [True, True, False]]


def test_measuring_changes_nothing_else():
    plain, measured = small_run("grpo"), small_run("grpo", measure_drift=True)
    for one, other in zip(plain.rows, measured.rows, strict=True):
        assert other["drift/step"] > 0 and "drift/step" not in one
        same = set(one) - {"step_time"}
        assert {k: one[k] for k in same} == {k: other[k] for k in same}
