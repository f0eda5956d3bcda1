"""K updates on a batch: each gradient, what it is averaged over, each step."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from refimpl import (
    ALGORITHMS,
    Objective,
    collect,
    loop,
    updates,
)
from refimpl.loss_terms import Entropy
from refimpl.moe import routers
from refimpl.normalisers import NORMALISERS
from tests.worlds import (
    always_one,
    disturb,
    fixed_noise,
    measured_loss,
    prepared,
    random_moe,
    rolled_out,
    small_run,
)


@pytest.fixture
def dealt(monkeypatch):
    """The groups of each mini-batch that was learned from."""
    groups, update = [], loop.update

    def spy(run, mini, meter):
        assert mini.token_count == mini.mask.sum()
        assert mini.response_count == len(mini)
        groups.append(mini.rollout.group.tolist())
        return update(run, mini, meter)

    monkeypatch.setattr(loop, "update", spy)
    return groups


@pytest.mark.parametrize(("minibatches", "epochs"), [(4, 2), (1, 3)])
def test_k_updates_on_whole_groups_reshuffled_every_epoch(minibatches, epochs, dealt):
    """Each epoch deals out every response once; no two orders need agree."""
    size = {"prompts_per_rollout": 8, "minibatches": minibatches, "epochs": epochs}
    history = small_run(overlong_filtering=True, **size)  # which `token_count` knows
    assert len(dealt) == 3 * minibatches * epochs
    assert min(history["ratio/max_deviation"]) > 1e-3
    orders = [dealt[i : i + minibatches] for i in range(0, len(dealt), minibatches)]
    for order in orders:
        assert {len(groups) for groups in order} == {32 // minibatches}
        every = sorted(group for groups in order for group in groups)
        assert every == [g for g in range(8) for _ in range(4)]
    assert minibatches == 1 or len({str(order) for order in orders}) == 6
    assert minibatches == 1 or sorted(orders[0]) != orders[0]


def test_a_batch_that_was_not_filled_still_takes_k_updates(dealt):
    """Five groups in four mini-batches: 2, 1, 1, 1, and not 2, 2, 1."""
    run, batch, _ = rolled_out(prompts_per_rollout=8, minibatches=4)
    updates(run, batch.rows((batch.rollout.group < 5).nonzero()[:, 0]), 0)
    assert [len(groups) for groups in dealt] == [8, 4, 4, 4]
    two = batch.rows((batch.rollout.group < 2).nonzero()[:, 0])
    dice = torch.Generator().manual_seed(1)
    assert [len(mini) for mini in two.minibatches(4, 1, dice)] == [4, 4]


# The step


def test_every_weight_has_its_rate_and_adam_its_memory():
    rates = {"learning_rate": 1e-4, "router_rate": 3.0, "critic_learning_rate": 7e-3}
    run = prepared("ppo", model=random_moe(), weight_decay=0.5, **rates)
    of_routers = [p for r in routers(run.model) for p in r.parameters()]
    groups = run.optimizer.param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert len(rates) == sum(len(group["params"]) for group in groups)
    wanted = {id(p): 1e-4 for p in run.model.parameters()}
    wanted |= {id(p): pytest.approx(3e-4) for p in of_routers}
    wanted |= {id(p): 7e-3 for p in run.critic.parameters()}
    assert rates == wanted
    assert {group["betas"] for group in groups} == {(0.9, 0.95)}
    assert {group["weight_decay"] for group in groups} == {0.5}
    plain = prepared(optimizer="sgd", learning_rate=0.1).optimizer
    assert type(plain) is torch.optim.SGD
    (group,) = plain.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.1, 0, 0)


@pytest.mark.parametrize("bound", [0.01, 1e6])
def test_no_gradient_is_longer_than_the_bound(bound, monkeypatch):
    """Policy and critic are clipped each by itself; the norm before is recorded."""
    norms = {"policy": [], "critic": []}

    def note(optimizer, *_):
        for name, group in zip(norms, optimizer.param_groups):
            lengths = torch.stack([p.grad.norm() for p in group["params"]])
            norms[name].append(lengths.norm().item())

    monkeypatch.setattr(loop, "MAX_GRAD_NORM", bound)
    run = prepared("ppo")
    run.optimizer.register_step_pre_hook(note)
    before = updates(run, collect(run, 0)[0], 0)["grad_norm"]
    if bound < 1:
        assert norms["policy"] + norms["critic"] == pytest.approx([bound] * 4, rel=1e-3)
        assert before > 2 * bound
    else:
        assert before == pytest.approx(sum(norms["policy"]) / 2)
        assert min(norms["critic"]) > 0.01


@pytest.mark.parametrize("name", ["model", "critic"])
def test_a_gradient_that_is_not_finite_stops_the_run_before_the_step(name):
    run, batch, _ = rolled_out("ppo", reward=fixed_noise)
    models = {"model": run.model, "critic": run.critic}
    before = [p.clone() for m in models.values() for p in m.parameters()]
    [*models[name].parameters()][-1].register_hook(lambda g: g * math.inf)
    whose = name.replace("model", "policy")
    with pytest.raises(FloatingPointError, match=rf"rollout 1: .* the {whose}'s grad"):
        updates(run, batch, 0)
    after = [p for m in models.values() for p in m.parameters()]
    assert all(map(torch.equal, before, after))


def test_weights_that_are_not_finite_after_the_last_step_stop_the_run():
    once = {"minibatches": 1, "allow_on_policy": True, "optimizer": "sgd"}
    run, batch, _ = rolled_out(reward=fixed_noise, learning_rate=1e38, **once)
    with pytest.raises(FloatingPointError, match="no longer finite after the last"):
        updates(run, batch, 0)


# Groups without a gradient


def some_equal(completions, **_):
    """Two groups have two rows at exactly the mean; the others are equal throughout."""
    return [[0.0, 0.5, 1.0, 0.5][i % 4] if i < 8 else 1.0 for i in range(16)]


@pytest.fixture
def passed(monkeypatch):
    """How many rows each pass of a loss had."""
    rows, read = [], loop.Run.read

    def spy(run, model, rollout, **replay):
        rows.extend([len(rollout)] * (model is run.model))
        return read(run, model, rollout, **replay)

    monkeypatch.setattr(loop.Run, "read", spy)
    return rows


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_groups_of_equal_rewards_are_not_computed(normaliser, passed):
    """Nor do rows at the mean: a group is kept or left out as a whole."""
    settings = {"reward": some_equal, "dtype": "float64", "normaliser": normaliser}
    run, batch, _ = rolled_out(**settings)
    disturb(run.model)
    quick, left = measured_loss(run, batch)[0], [*run.model.parameters()]
    run.zero_advantage_rows_matter = True
    full = measured_loss(run, batch)[0]
    assert passed == [8, 16]
    assert quick.item() == pytest.approx(full.item(), rel=1e-6, abs=1e-9)
    slopes = (torch.autograd.grad(x, left) for x in (quick, full))
    found, right = (torch.cat([g.flatten() for g in each]) for each in slopes)
    assert_close(found, right, rtol=0, atol=1e-5 * right.abs().max())


def pulled_back(t) -> Objective:
    """GRPO's surrogate without a clip, and a leash that does not ask for Â."""
    return Objective(t.z.exp() * t.advantages - 0.5 * t.z**2)


MINE = replace(ALGORITHMS["grpo"], name="mine", objective=pulled_back)
ACTS = {
    "kl": {"beta": 0.1},
    "entropy": {"entropy_bonus": 0.1},
    "a term": {"loss_terms": [Entropy(0.1)]},
    "critic": {"algorithm": "ppo"},
    "objective": {"algorithm": MINE},
    "kl in the reward": {"beta": 0.1, "kl_in": "reward"},
    "load balance": {"model": random_moe()},
    "nothing": {},
}


@pytest.mark.filterwarnings("ignore::refimpl.tasks.TaskWarning")
@pytest.mark.parametrize("case", ACTS)
def test_no_group_is_left_out_when_every_token_has_a_gradient(case, passed):
    run, batch, _ = rolled_out(reward=always_one, **ACTS[case])
    batch = replace(batch, advantages=torch.zeros_like(batch.mask))
    assert updates(run, batch, 0).get("router/shift", 1) > 0.9  # a mean of what passed
    acts = case in ("kl", "entropy", "a term", "critic", "objective")
    assert passed == ([8, 8] if acts else [1, 1])
