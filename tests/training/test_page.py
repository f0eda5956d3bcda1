"""The page is the program: a plain loop gives what `train` gives.

`page` is written with the package's formulas alone: no settings, no hooks, no objects
that carry a run. Whenever `train` does something that a reader would not find here, the
two part and this is red. A critic is added to one update by hand; routers are in
`test_together.py`.
"""

import copy
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import refimpl as rl
from refimpl import collect, seeds
from refimpl.advantages import gae, lam_by_length, token_rewards, whiten
from refimpl.algorithms import ALGORITHMS, value_loss
from refimpl.logprobs import values
from refimpl.normalisers import NORMALISERS
from refimpl.tasks import Arithmetic
from tests.worlds import (
    SMALL,
    TOKENIZER,
    disturb,
    fixed_noise,
    largest_difference,
    measured_loss,
    prepared,
    small_run,
    warm_model,
)

LENGTH, SEED = 24, 3
OFF = {"dynamic_sampling": False, "overlong_share": 0.0}
CONFIG = replace(SMALL, seed=SEED, rollouts=2, prompts_per_rollout=8, **OFF)
"""A micro-batch is a whole mini-batch of 16, which the page takes in one pass."""


def page(name, start, normaliser=None, longest=LENGTH, **hyper):
    """A policy after two rollouts, and for each its reward and gradient norm."""
    prompts, G, minibatches = 8, 4, 2
    method, world = ALGORITHMS[name], Arithmetic()
    normaliser = NORMALISERS.get(normaliser, method.normaliser)
    policy = copy.deepcopy(start).eval()
    how = {"lr": 2e-4, "betas": (0.9, 0.95), "weight_decay": 0, "fused": True}
    optimizer = torch.optim.AdamW(policy.parameters(), **how)
    history = []
    for step in range(2):
        # 1. Problems, and G answers to each.
        rows = world.sample(prompts, seeds.seed_for(SEED, step, "q"))
        rollout = rl.sample(
            policy,
            TOKENIZER,
            [row["prompt"] for row in rows],
            group_size=G,
            max_new_tokens=LENGTH,
            seed=seeds.seed_for(SEED, step, "sample"),
        )
        # 2. Rewards, which differ in every group.
        rewards = torch.tensor(fixed_noise(rollout.texts(TOKENIZER)))
        # 3. Advantages, the same for all tokens of an answer.
        advantages = method.advantages(rl.Scored(rewards, rollout.group, rollout.mask))
        advantages = advantages.view(len(rollout), -1).expand_as(rollout.mask)
        # 4. An optimiser step for each mini-batch of whole groups.
        dice = seeds.generator(seeds.seed_for(SEED, step, "shuffle"))
        norms = []
        for chosen in torch.randperm(prompts, generator=dice).chunk(minibatches):
            index = torch.isin(rollout.group, chosen).nonzero()[:, 0]
            index = index[rollout.end[index].argsort(stable=True)]
            mini = rollout.rows(index)  # π_old's log-probs are the sampler's
            A = advantages[index, : mini.mask.shape[1]]
            known = {"group": mini.group, "max_length": longest}
            weight = rl.normalisers.apply(normaliser, mini.mask, **known)
            logp, _ = rl.log_probs(policy, mini)
            loss, _ = method.loss(logp, mini.logp, A, mini.mask, weight, **hyper)
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0))
            optimizer.step()
            optimizer.zero_grad()
        history.append((rewards.mean().item(), sum(norms).item() / len(norms)))
    return history, policy


WIDE = {"tau_pos": 4.0, "tau_neg": 5.0}
KINDS = "reinforce gspo dapo cispo gmpo dppo_kl luspo flash_reinforce".split()
"""Of ratios (none, of tokens, of responses, to the sampler), normalisers, advantages,
and settings of a method's own; the other methods differ in their formulas alone."""
CASES = {name: (name, {}, {}) for name in KINDS}
CASES |= {n: ("grpo", {"normaliser": n}, {"normaliser": n}) for n in NORMALISERS}
CASES["a longer constant"] = "dr_grpo", {"max_length": 100}, {"longest": 100}
CASES["wide"] = "sapo", {"hyperparameters": WIDE}, WIDE


@pytest.mark.parametrize("case", CASES)
def test_a_plain_page_gives_the_history_and_the_weights_of_train(case):
    """Bit for bit."""
    name, settings, of_page = CASES[case]
    start = warm_model()
    given = {"model": start, "tokenizer": TOKENIZER, "reward": fixed_noise}
    config = replace(CONFIG, **settings)
    history = rl.train(name, config=config, progress=False, **given)
    mine, policy = page(name, start, **of_page)
    for (reward, norm), row in zip(mine, history.rows, strict=True):
        assert reward == pytest.approx(row["reward"], abs=1e-6)
        assert norm == pytest.approx(row["grad_norm"], rel=1e-4, abs=1e-6)
    assert largest_difference(policy, start) > 1e-4
    assert largest_difference(policy, history.model) == 0


# One update more by hand, after both models have moved


@pytest.mark.parametrize("name", ["ppo", "sao"])
def test_a_critic_adds_its_loss_and_its_advantages(name):
    """Whitened over all tokens that were written, those without a loss included."""
    given = {"dtype": "float64", "reward": fixed_noise, "overlong_filtering": True}
    lam = {} if name == "sao" else {"lam": 0.8}
    run = prepared(name, gamma=0.9, value_clip=0.01, **lam, **given)
    models = run.model, run.critic
    disturb(run.critic, 0.05)  # it begins with V = 0
    batch, _ = collect(run, 0)
    for one in models:
        disturb(one, 0.005, seed=1)
    found = measured_loss(run, batch)[0]
    method, rollout, mask = run.algorithm, batch.rollout, batch.rollout.mask
    rewards = torch.tensor(fixed_noise(rollout.texts(TOKENIZER)))
    lam = lam_by_length(mask, alpha=1.5) if name == "sao" else 0.8
    V = batch.old_values
    paid = token_rewards(rewards, mask)
    scored = rl.Scored(paid, rollout.group, mask, V, gamma=0.9, lam=lam)
    A = gae(scored)
    returns = (gae(replace(scored, lam=1.0)) if name == "sao" else A) + V
    left = mask * ~rollout.truncated[:, None]
    known = batch.old_logp, whiten(A, mask), left
    logp, _ = rl.log_probs(run.model, rollout)
    wanted = method.policy_loss(logp, *known).loss
    V_now = values(run.critic, rollout)
    wanted = wanted + value_loss(V_now, V, returns, left, epsilon=0.01)
    assert_close(found, wanted.to(found), rtol=1e-5, atol=1e-7)
    weights = [p for m in models for p in m.parameters() if p.requires_grad]
    pair = (torch.autograd.grad(x, weights) for x in (found, wanted))
    for one, other in zip(*pair, strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", [*CASES, "ppo", "sao", "filtered"])
def test_the_size_of_a_micro_batch_changes_nothing(case):
    """Micro-batches of 3 cut groups of 4: weights and history, in float64.

    By plain gradients, because Adam makes large steps of roundings. Not with routers,
    whose load is balanced in each micro-batch.
    """
    name, settings, _ = CASES.get(case, (case, {}, {}))
    if case == "filtered":
        name, settings = "ppo", {"overlong_filtering": True}
    plain = OFF | {"dtype": "float64", "optimizer": "sgd", "learning_rate": 0.1}
    given = {"rollouts": 1, "epochs": 2, "reward": fixed_noise, **plain, **settings}
    whole, cut = (small_run(name, micro_batch_size=n, **given) for n in (16, 3))
    assert largest_difference(whole.model, cut.model) < 1e-6
    assert largest_difference(whole.model, warm_model()) > 1e-4
    for key, value in whole.rows[0].items():
        if key not in ("step_time", "accuracy"):
            assert cut.rows[0][key] == pytest.approx(value, rel=1e-5, abs=1e-7), key
