"""The page is the program: a plain loop gives what `train` gives, for every method.

`page` is written with the package's formulas alone: no settings, no hooks, no objects
that carry a run. Whenever `train` does something that a reader would not find here, the
two part and this is red.
"""

import copy
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import refimpl as rl
from refimpl import moe, seeds
from refimpl.advantages import gae, lam_by_length, whiten
from refimpl.algorithms import ALGORITHMS, value_loss
from refimpl.kl import token_rewards
from refimpl.logprobs import values
from refimpl.models import make_critic
from refimpl.moe import BALANCE, Drift, recorded, routed
from refimpl.normalisers import NORMALISERS
from refimpl.tasks import Arithmetic
from tests.worlds import (
    TOKENIZER,
    fixed_noise,
    largest_difference,
    small_run,
    warm_model,
)

LENGTH, SEED = 24, 3
CONFIG = rl.TrainConfig(
    seed=SEED,
    rollouts=2,
    prompts_per_rollout=8,
    group_size=4,
    max_new_tokens=LENGTH,
    minibatches=2,
    micro_batch_size=16,  # a whole mini-batch: the page takes it in one pass
    dynamic_sampling=False,
    overlong_share=0.0,
    eval_every=100,
    eval_problems=4,
)


def page(name, start, routers=False, normaliser=None, longest=LENGTH, **hyper):
    """A policy after two rollouts, and for each its reward and gradient norm."""
    rollouts, prompts, G, minibatches = 2, 8, 4, 2
    method, world = ALGORITHMS[name], Arithmetic()
    normaliser = NORMALISERS.get(normaliser, method.normaliser)
    policy = copy.deepcopy(start).eval()
    groups = [{"params": policy.parameters(), "lr": 2e-4}]
    fixed = method.training.get("critic_frozen", ())
    critic = make_critic(policy, fixed) if method.critic else None
    if critic:
        groups.append({"params": critic.parameters(), "lr": 1e-3})
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0, fused=True)
    history = []
    for step in range(rollouts):
        # 1. Problems, and G answers to each.
        rows = world.sample(prompts, seeds.seed_for(SEED, step, "q"))
        with routed(policy) if routers else nullcontext() as routing:
            rollout = rl.sample(
                policy,
                TOKENIZER,
                [row["prompt"] for row in rows],
                group_size=G,
                max_new_tokens=LENGTH,
                seed=seeds.seed_for(SEED, step, "sample"),
            )
        if routers:
            rollout = recorded(rollout, routing)
        # 2. Rewards, and advantages.
        truth = [row["answer"] for row in rows for _ in range(G)]
        paid = world.reward(None, rollout.texts(TOKENIZER), answer=truth)
        rewards, mask, old_values = torch.tensor(paid), rollout.mask, None
        if critic:
            with torch.no_grad():
                old_values = values(critic, rollout)
        lam, own = 0.95, method.training
        if "lam_alpha" in own:
            lam = lam_by_length(mask, own["lam_alpha"])
        scored = rl.Scored(
            token_rewards(rewards, mask), rollout.group, mask, old_values, lam=lam
        )
        advantages = method.advantages(scored)
        if advantages.ndim == 1:
            advantages = advantages[:, None].expand_as(mask)
        if critic:
            targets = advantages + old_values
            if "lam_critic" in own:
                targets = gae(replace(scored, lam=own["lam_critic"])) + old_values
            advantages = whiten(advantages, mask)
        # 3. One optimiser step for each mini-batch of whole groups.
        shuffle = seeds.generator(seeds.seed_for(SEED, step, "shuffle"))
        norms = []
        for chosen in torch.randperm(prompts, generator=shuffle).chunk(minibatches):
            index = torch.isin(rollout.group, chosen).nonzero()[:, 0]
            weight = rl.normalisers.apply(
                normaliser,
                mask[index],
                group=rollout.group[index],
                max_length=longest,
            )
            tokens = mask[index].sum()
            # Groups of equal rewards have no gradient, and need no pass.
            live = (advantages[index] * mask[index] != 0).any(-1)
            live = torch.isin(rollout.group[index], rollout.group[index][live])
            live |= critic is not None or method.acts_without_advantage()
            live[0] |= not live.any()
            order = live.nonzero()[:, 0]
            order = order[rollout.end[index[order]].argsort(stable=True)]
            index, weight = index[order], weight[order]
            mini = rollout.rows(index)
            width = mini.mask.shape[1]
            weight = weight[:, :width]
            with routed(policy) if routers else nullcontext() as routing:
                logp, _ = rl.log_probs(policy, mini)
            old_logp, extra = mini.logp, 0.0
            if routers:
                moved = Drift(mini, routing)
                old_logp, weight = moe.shifted(old_logp, weight, mini.mask, moved.gamma)
                extra = BALANCE * mini.mask.sum() / tokens * moved.balance
            if critic:
                known = old_values[index, :width], targets[index, :width]
                known += mini.mask, mini.mask / tokens
                extra = value_loss(values(critic, mini), *known)
            A = advantages[index, :width]
            loss, _ = method.loss(logp, old_logp, A, mini.mask, weight, **hyper)
            (loss + extra).backward()
            for model in (policy, critic) if critic else (policy,):
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                norms += [norm.item()] if model is policy else []
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(own.get("critic_updates", 1) - 1):
                value_loss(values(critic, mini), *known).backward()
                torch.nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        history.append((rewards.mean().item(), sum(norms) / len(norms)))
    return history, policy


WIDE = {"tau_pos": 4.0, "tau_neg": 5.0}
CASES = {name: (name, {}, {}) for name in ALGORITHMS}
CASES |= {n: ("grpo", {"normaliser": n}, {"normaliser": n}) for n in NORMALISERS}
CASES["a longer constant"] = "dr_grpo", {"max_length": 100}, {"longest": 100}
CASES["wide"] = "sapo", {"hyperparameters": WIDE}, WIDE


@pytest.mark.parametrize("case", CASES)
def test_a_plain_page_gives_the_history_and_the_weights_of_train(case):
    """Bit for bit; with a critic or routers two losses are added in another order."""
    name, settings, of_page = CASES[case]
    routers = bool(ALGORITHMS[name].training.get("router_shift"))
    start = warm_model()
    if routers:
        start = rl.warm_start(rl.WarmStart(preset="tiny-moe"))[0]
    given = {"model": start, "tokenizer": TOKENIZER, "progress": False}
    history = rl.train(name, config=replace(CONFIG, **settings), **given)
    mine, policy = page(name, start, routers=routers, **of_page)
    for (reward, norm), row in zip(mine, history.rows, strict=True):
        assert reward == pytest.approx(row["reward"], abs=1e-6)
        assert norm == pytest.approx(row["grad_norm"], rel=1e-4, abs=1e-6)
    assert largest_difference(policy, start) > 1e-4
    rounding = 1e-6 if routers or ALGORITHMS[name].critic else 0
    assert largest_difference(policy, history.model) <= rounding


FILTERED = "ppo", {"overlong_filtering": True}, {}


@pytest.mark.parametrize("case", [*(c for c in CASES if c != "rspo"), "filtered"])
def test_the_size_of_a_micro_batch_changes_nothing(case):
    """Micro-batches of 3 cut groups of 4: weights and history, in float64.

    By plain gradients, because Adam makes large steps of roundings. Not with routers,
    whose load is balanced in each micro-batch.
    """
    name, settings, _ = CASES.get(case, FILTERED)
    plain = {"dynamic_sampling": False, "overlong_share": 0.0, "dtype": "float64"}
    plain |= {"optimizer": "sgd", "learning_rate": 0.1}
    given = {"rollouts": 1, "epochs": 2, "reward": fixed_noise, **plain, **settings}
    whole, cut = (small_run(name, micro_batch_size=n, **given) for n in (16, 3))
    assert largest_difference(whole.model, cut.model) < 1e-6
    assert largest_difference(whole.model, warm_model()) > 1e-4
    for key, value in whole.rows[0].items():
        if key not in ("step_time", "accuracy"):
            assert cut.rows[0][key] == pytest.approx(value, rel=1e-5, abs=1e-7), key
