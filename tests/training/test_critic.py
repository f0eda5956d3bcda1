"""A critic of any method: its own steps, its own λ, frozen parts, rollouts alone."""

from dataclasses import replace

import pytest
import torch

from refimpl import ALGORITHMS, UserError, collect, updates
from refimpl.advantages import explained_variance, gae
from refimpl.models import make_critic
from tests.worlds import (
    disturb,
    fixed_noise,
    prepared,
    random_model,
    same_weights,
    small_run,
    warm_model,
)


def after(rollouts=1, algorithm="ppo", **settings):
    """A run after some rollouts, and the rows of its history."""
    run = prepared(algorithm, reward=fixed_noise, **settings)
    for step in range(rollouts):
        run.batch, row = collect(run, step)
        run.history.add(step, row | updates(run, run.batch, step), 0.0)
    return run


def test_any_method_takes_a_critic_and_one_answer():
    """By a setting as by its own field, bit for bit; PPO has it already."""
    alone = {"group_size": 1, "reward": fixed_noise, "prompts_per_rollout": 8}
    for name in ("sapo", "ppo"):
        own = replace(ALGORITHMS[name], critic=True, advantages=gae)
        one, other = small_run(name, advantage="gae", **alone), small_run(own, **alone)
        assert one == other and same_weights(one.model, other.model)
        assert "value_loss" in one.columns
    with pytest.raises(UserError, match="critic_updates has no effect without"):
        prepared("grpo", critic_updates=2)


def test_further_steps_of_the_critic_do_not_touch_the_policy():
    """Not its weights, nor Adam's memory of them, before the next rollout."""
    one, two = after(), after(critic_updates=2)
    assert same_weights(one.model, two.model)
    assert not same_weights(one.critic, two.critic)
    for run, steps in ((one, 2), (two, 4)):
        made = run.optimizer.state
        assert {int(made[p]["step"]) for p in run.model.parameters()} == {2}
        assert {int(made[p]["step"]) for p in run.critic.parameters()} == {steps}
    for p, q in zip(one.model.parameters(), two.model.parameters()):
        for name, x in one.optimizer.state[p].items():
            assert torch.equal(x, two.optimizer.state[q][name])
    first, second = (run.history.rows[0] for run in (one, two))
    assert {k for k in first if first[k] != second[k]} == {"value_loss"}


def test_the_policy_waits_for_its_critic_and_then_begins_anew():
    run = after(2, critic_warmup=2)
    assert same_weights(run.model, warm_model())
    assert not same_weights(run.critic, make_critic(run.model))
    assert max(run.history["ratio/max_deviation"]) < 1e-4 < run.history["grad_norm"][0]
    run = after(3, critic_warmup=2)
    assert not same_weights(run.model, warm_model())
    assert {int(run.optimizer.state[p]["step"]) for p in run.model.parameters()} == {2}
    small_run("ppo", critic_warmup=5, rollouts=6)  # no StalenessError
    with pytest.raises(UserError, match="critic_warmup has no effect without a roll"):
        prepared("ppo", critic_warmup=6, rollouts=6)


def test_frozen_parts_of_the_critic_stay():
    run = after(2, critic_frozen=("attn", "embed"))
    first = dict(make_critic(warm_model()).named_parameters())
    for name, p in run.critic.named_parameters():
        frozen = "attn" in name or "embed" in name
        assert torch.equal(p, first[name]) == frozen == (not p.requires_grad), name
    with pytest.raises(UserError, match="no weight of the critic has 'atn' in"):
        make_critic(random_model(), ("atn",))


def collected(**settings):
    """The first batch, of a critic with opinions."""
    run = prepared("ppo", reward=fixed_noise, **settings)
    with torch.no_grad():
        disturb(run.critic, 0.1)
    return collect(run, 0)


def test_each_lambda_reaches_what_it_is_for():
    plain, by_default = collected()
    mask = plain.mask.bool()
    two, row = collected(lam_critic=1.0)
    assert torch.equal(two.advantages, plain.advantages)
    # With λ = 1 a target is the response's reward, whatever V is.
    last = two.targets[torch.arange(len(two)), (two.mask.sum(-1) - 1).long()]
    gap = (two.targets - last[:, None])[mask].abs().max()
    assert gap < 1e-5 < (plain.targets - two.targets)[mask].abs().max()
    wanted = explained_variance(two.old_values, two.targets, two.mask)
    for known in (row, by_default):  # of the rewards, whatever the critic's targets are
        assert known["explained_var"] == pytest.approx(wanted, abs=1e-6)
    none, _ = collected(lam_critic=0.0)  # r + V of the next token
    ends = none.mask[:, 1:].bool()
    behind = none.old_values[:, 1:][ends]
    assert torch.allclose(none.targets[:, :-1][ends], behind, atol=1e-6)
    raw, _ = collected(whiten=False)
    assert torch.allclose(raw.advantages, plain.targets - plain.old_values, atol=1e-6)


def test_explained_variance_by_hand():
    """R = 0 0 1 1 has variance ¼ (over n); V = ½ explains nothing, ¼ and ¾ three
    quarters; padding is not looked at."""
    returns = torch.tensor([[0.0, 0, 1, 1, 9]])
    mask = torch.tensor([[1.0, 1, 1, 1, 0]])
    for values, known in (
        ([0.5] * 5, 0),
        ([0.25, 0.25, 0.75, 0.75, 0], 0.75),
        ([1, 1, 0, 0, 0], -3),
    ):
        found = explained_variance(torch.tensor([values]), returns, mask)
        assert found == pytest.approx(known)
    assert explained_variance(returns, torch.ones(1, 5) * 0.1, mask) is None
    assert after(1).history["explained_var"] == [0.0]  # the head of zeros
