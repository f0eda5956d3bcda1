"""Training: what each setting does, what is recorded, what is refused."""

import math
import random
import threading
import zlib
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from tests.worlds import (
    EPSILON,
    ROUNDING,
    SMALL,
    TOKENIZER,
    gpt2,
    largest_difference,
    random_model,
    random_moe,
    same_weights,
    small_run,
    warm_model,
)

from refimpl import collect, trainer, update
from refimpl.advantages import gae, group_relative, whiten
from refimpl.normalisers import AGGREGATIONS, aggregate
from refimpl.algorithms import ALGORITHMS
from refimpl.dice import seed_for
from refimpl.kl import ESTIMATORS
from refimpl.models import frozen_copy, make_critic
from refimpl.rollout import Rollout, log_probs, values
from refimpl.run import Batch
from refimpl.tasks import Arithmetic, make_tokenizer
from refimpl.trainer import (
    StalenessError,
    TrainConfig,
    collect,
    evaluate,
    train,
    update,
)

COURSE = {"prompts_per_rollout": 16, "group_size": 8, "minibatches": 4}
"""The rollouts of the course: 128 responses, 4 updates."""


def prepared(
    algorithm="grpo", *, model=None, reward=None, task=None, **settings
) -> trainer.Run:
    """A run before its first rollout."""
    config = replace(SMALL, **settings)
    model = warm_model() if model is None else model
    method = ALGORITHMS[algorithm]
    return trainer.prepare(method, config, model, TOKENIZER, task, reward)


def always_one(completions, **_):
    return [1.0] * len(completions)


def fixed_noise(completions, **_):
    """Rewards that never tie, whatever the policy writes."""
    return [zlib.crc32(f"{i}{c}".encode()) % 97 / 97 for i, c in enumerate(completions)]


@pytest.fixture
def steps(monkeypatch):
    """At every optimiser step: (learning rate, gradient norm) of each model."""
    seen, step = [], torch.optim.AdamW.step

    def norm(parameters):
        return torch.stack([p.grad.norm() for p in parameters]).norm().item()

    def spy(self, *arguments, **keywords):
        seen.append([(g["lr"], norm(g["params"])) for g in self.param_groups])
        return step(self, *arguments, **keywords)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    return seen


# The seed


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_seed_decides_the_run(algorithm):
    settings = {}
    if ALGORITHMS[algorithm].training.get("router_shift"):
        settings = {"model": random_moe(), "reward": fixed_noise}
    first = small_run(algorithm, seed=3, **settings)
    second = small_run(algorithm, seed=3, **settings)
    assert len(first) == 3
    assert first == second
    assert same_weights(first.model, second.model)
    assert first != small_run(algorithm, seed=4, **settings)


def test_the_global_generators_neither_move_nor_matter():
    def states():
        return random.getstate(), str(np.random.get_state()), torch.get_rng_state()  # noqa: NPY002

    torch.manual_seed(1)
    python, numpy, pytorch = states()
    first = small_run("ppo", rollouts=2)
    assert states()[:2] == (python, numpy)
    assert torch.equal(states()[2], pytorch)
    torch.manual_seed(2)
    random.seed(2)
    assert small_run("ppo", rollouts=2) == first


def test_building_a_model_asks_no_generator_but_the_cpu_s(monkeypatch):
    """`torch.manual_seed` would seed those of every GPU too."""

    def touched(_):
        raise AssertionError("all generators were seeded")

    before = torch.random.get_rng_state()
    monkeypatch.setattr(torch, "manual_seed", touched)
    make_critic(random_model())
    assert torch.equal(before, torch.random.get_rng_state())


def test_every_purpose_has_a_seed_of_its_own():
    seeds = {
        seed_for(run, step, purpose)
        for run in range(12)
        for step in range(12)
        for purpose in ("q", "sample", "shuffle")
    }
    assert len(seeds) == 12 * 12 * 3
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_for(0, 0, "q") == 7096954762923715842  # on every machine


def test_problems_and_samples_change_from_rollout_to_rollout():
    run = prepared()
    first, second = (trainer.collect(run, step)[0].rollout for step in (0, 1))
    assert first.ids.tolist() != second.ids.tolist()
    again = trainer.collect(run, 0)[0].rollout
    assert torch.equal(again.ids, first.ids)
    assert torch.equal(again.logp, first.logp)


# The model


def test_the_model_passed_in_is_left_as_it_was():
    model = random_model()
    model.get_input_embeddings().weight.requires_grad_(False)
    history = small_run("ppo", model=model, rollouts=2, reward=fixed_noise)
    assert same_weights(model, random_model())
    assert not model.training
    assert not model.get_input_embeddings().weight.requires_grad
    assert all(p.grad is None for p in model.parameters())
    assert history.model is not model
    assert not same_weights(history.model, model)
    assert not history.model.training


def test_the_last_accuracy_is_that_of_the_model_handed_back():
    history = small_run(rollouts=2, eval_problems=64, max_new_tokens=48)
    assert history.accuracy == evaluate(history.model, TOKENIZER, problems=64)


@pytest.mark.parametrize(
    ("dtype", "weights"),
    [
        ("float32", torch.float32),
        ("bfloat16", torch.float32),
        ("float64", torch.float64),
    ],
)
def test_the_dtype_of_the_weights(dtype, weights):
    history = small_run(rollouts=1, dtype=dtype)
    assert {p.dtype for p in history.model.parameters()} == {weights}


def test_bfloat16_computes_in_bfloat16():
    """Sampling, scoring and training; there decoding and scoring round differently."""
    for dtype in ("bfloat16", "float32"):
        seen, run = set(), prepared(dtype=dtype)
        run.model.lm_head.register_forward_hook(
            lambda layer, given, logits, seen=seen: seen.add(logits.dtype)
        )
        batch, metrics = trainer.collect(run, 0)
        trainer.update(run, batch, 0)
        assert seen == {getattr(torch, dtype)}
        assert ("sampling/kl" in metrics) == (dtype == "bfloat16")


def test_in_bfloat16_old_log_probs_are_scored_and_not_the_samplers(monkeypatch):
    """By how much the two differ is the processor's affair, so the test adds 1 nat."""
    sampled = experience.sample

    def off_by_one(*arguments, **keywords):
        rollout = sampled(*arguments, **keywords)
        return replace(rollout, logp=rollout.logp + rollout.mask)

    monkeypatch.setattr(experience, "sample", off_by_one)
    settings = {"rollouts": 1, "minibatches": 1, "allow_on_policy": True}
    half, single = (
        small_run(dtype=dtype, **settings).rows[0] for dtype in ("bfloat16", "float32")
    )
    assert half["ratio/max_deviation"] < 0.2  # 2⁻⁸ relative, on logits up to 10
    assert half["sampling/kl"] == pytest.approx(1, abs=0.1)
    assert single["ratio/max_deviation"] == pytest.approx(1 - math.exp(-1), abs=0.01)


def test_the_critic_of_a_bfloat16_run_is_asked_in_bfloat16_before_and_after():
    run = prepared("ppo", dtype="bfloat16")
    torch.nn.init.normal_(run.critic.score.weight)
    batch, _ = collect(run, 0)
    with torch.no_grad():
        exact = values(run.critic, batch.rollout)
        with run.precision():
            rounded = values(run.critic, batch.rollout)
    near = (batch.old_values - rounded).abs().max()
    assert near < (batch.old_values - exact).abs().max() / 2


def test_the_last_accuracy_of_a_bfloat16_run_is_measured_in_bfloat16(monkeypatch):
    seen, evaluate = [], trainer.evaluate

    def spy(*args, **kwargs):
        seen.append(torch.is_autocast_enabled("cpu"))
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(trainer, "evaluate", spy)
    small_run(rollouts=1, dtype="bfloat16")
    small_run(rollouts=1)
    assert seen == [True, False]


def test_a_gradient_that_is_not_finite_stops_the_run_before_the_step():
    run = prepared()
    batch, _ = collect(run, 0)
    before = [p.clone() for p in run.model.parameters()]
    for p in run.model.parameters():
        p.register_hook(lambda g: g * float("inf"))
    with pytest.raises(FloatingPointError, match=r"update 1: .* has diverged"):
        update(run, batch, 0)
    assert all(map(torch.equal, before, run.model.parameters()))


# Updates


@pytest.mark.parametrize(("minibatches", "epochs"), [(2, 1), (4, 1), (1, 3), (2, 3)])
def test_k_updates_happen_on_every_rollout(minibatches, epochs, steps):
    history = small_run(rollouts=2, minibatches=minibatches, epochs=epochs)
    assert len(steps) == 2 * minibatches * epochs
    assert min(history["ratio/max_deviation"]) > 1e-3


def test_a_batch_that_was_not_filled_still_takes_k_updates(steps):
    """Five groups in four mini-batches: 2, 1, 1, 1, and not 2, 2, 1."""
    run = prepared(prompts_per_rollout=8, minibatches=4)
    batch, _ = collect(run, 0)
    five = (batch.rollout.group < 5).nonzero()[:, 0]
    rest = {
        f.name: None if (x := getattr(batch, f.name)) is None else x[five]
        for f in fields(batch)
        if f.name != "rollout"
    }
    part = Batch(replace(batch.rollout.rows(five)), **rest)
    width = part.rollout.mask.shape[1]
    rest = {k: None if x is None else x[:, :width] for k, x in rest.items()}
    update(run, Batch(part.rollout, **rest), 0)
    assert len(steps) == 4


def test_a_large_run_is_measured_on_a_part_of_its_tokens(monkeypatch):
    """torch's quantile takes 2²⁴ numbers at most."""
    monkeypatch.setattr(optimise, "MOST", 64)
    row = small_run(rollouts=1).rows[0]
    assert row["log_ratio/q01"] <= row["log_ratio/q50"] <= row["log_ratio/q99"]
    assert row["log_ratio/q99"] > 0


def test_a_reward_that_is_a_method_is_asked_once():
    class World(Arithmetic):
        asked = 0

        def reward(self, prompts, completions, **columns):
            World.asked += 1
            return [float(len(c) % 2) for c in completions]

    collect(prepared(task=World()), 0)
    assert World.asked == 1


def test_minibatches_are_whole_groups_reshuffled_every_epoch(monkeypatch):
    """Each epoch deals out every response once; no two orders need agree."""
    dealt, one_update = [], optimise._one_update

    def spy(run, batch, chosen, *rest):
        dealt.append(chosen)
        return one_update(run, batch, chosen, *rest)

    monkeypatch.setattr(optimise, "_one_update", spy)
    small_run(rollouts=3, prompts_per_rollout=8, minibatches=4, epochs=2)
    epochs = [dealt[i : i + 4] for i in range(0, len(dealt), 4)]
    assert len(epochs) == 6
    orders = set()
    for minibatches in epochs:
        assert torch.cat(minibatches).sort().values.tolist() == list(range(32))
        groups = [sorted(set((rows // 4).tolist())) for rows in minibatches]
        assert [len(group) for group in groups] == [2, 2, 2, 2]
        orders.add(str(groups))
    assert len(orders) == 6
    assert str([[0, 1], [2, 3], [4, 5], [6, 7]]) not in orders


VARIANTS = {
    "plain": ("grpo", {}),
    "per token": ("grpo", {"hyperparameters": {"aggregation": "token_mean"}}),
    "per group": ("grpo", {"hyperparameters": {"aggregation": "group_token_mean"}}),
    "with kl and entropy": ("reinforce", {"beta": 0.5, "entropy_bonus": 0.1}),
    "with a critic": ("ppo", {"beta": 0.5, "kl_in": "reward"}),
}


def after_one_update(algorithm, micro_batch_size, dtype, **settings):
    """A run, gradients still there, after the first update of its first rollout."""
    run = prepared(
        algorithm,
        **{**COURSE, "minibatches": 1, "epochs": 2, "max_new_tokens": 12},
        **settings,
        dtype=dtype,
        micro_batch_size=micro_batch_size,
    )
    if run.reference is not None:  # as if many updates had passed
        with torch.no_grad():
            for p in run.reference.parameters():
                p.mul_(0.9)
    run.optimizer.zero_grad = lambda **_: None
    batch, _ = trainer.collect(run, 0)
    optimise._one_update(run, batch, torch.arange(128), 0, [])
    return run


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_micro_batch_size_changes_memory_and_not_the_update(variant):
    """In float64, because a sum in another order rounds differently."""
    algorithm, settings = VARIANTS[variant]
    sizes = (4, 16, 128) if variant != "per group" else (8, 16, 128)
    runs = [after_one_update(algorithm, n, "float64", **settings) for n in sizes]
    assert largest_difference(runs[0].model, frozen_copy(warm_model()).double()) > 1e-5
    for run in runs[:2]:
        assert largest_difference(run.model, runs[2].model) < 1e-12
        if run.critic is not None:
            assert largest_difference(run.critic, runs[2].critic) < 1e-12


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_in_float32_micro_batches_agree_to_rounding(algorithm):
    """Gradients, because Adam's first step is a sign, whatever the size.

    An entry of the gradient is a sum over 128 × 12 tokens; in any order, its error is
    at most the number of terms × ε × their size. The largest entry stands for that.
    """
    runs = [after_one_update(algorithm, n, "float32") for n in (4, 16, 128)]
    largest = max(p.grad.abs().max().item() for p in runs[2].model.parameters())
    for run in runs[:2]:
        pairs = zip(run.model.parameters(), runs[2].model.parameters(), strict=True)
        gap = max((a.grad - b.grad).abs().max().item() for a, b in pairs)
        assert gap < 128 * 12 * EPSILON * largest


def test_the_learning_rates_rise_linearly_over_the_warm_up(steps):
    rates = {"learning_rate": 4e-4, "critic_learning_rate": 8e-4}
    history = small_run("ppo", rollouts=3, warmup_updates=4, **rates)
    shares = [0.25, 0.5, 0.75, 1, 1, 1]
    assert [s[0][0] for s in steps] == pytest.approx([4e-4 * s for s in shares])
    assert [s[1][0] for s in steps] == pytest.approx([8e-4 * s for s in shares])
    assert history["learning_rate"] == pytest.approx([1.5e-4, 3.5e-4, 4e-4])


def test_without_warm_up_the_first_step_is_a_full_one(steps):
    small_run(rollouts=1, learning_rate=5e-4)
    assert [s[0][0] for s in steps] == [5e-4, 5e-4]


def test_no_gradient_is_longer_than_the_bound(steps):
    """Policy and critic are clipped each by itself; the norm before is recorded."""
    history = small_run("ppo", rollouts=2, max_grad_norm=0.01)
    assert min(history["grad_norm"]) > 0.02
    for policy, critic in steps:
        assert policy[1] == pytest.approx(0.01, rel=1e-3)
        assert critic[1] == pytest.approx(0.01, rel=1e-3)


def test_a_short_gradient_is_left_alone(steps):
    history = small_run(rollouts=1, max_grad_norm=1e6)
    norms = [policy[1] for (policy,) in steps]
    assert history["grad_norm"][0] == pytest.approx(sum(norms) / len(norms))


def test_weight_decay_shrinks_the_weights_and_is_off_by_default():
    run, decayed = (
        prepared(reward=always_one),
        prepared(reward=always_one, weight_decay=0.5, learning_rate=0.1),
    )
    for r in (run, decayed):
        trainer.update(r, trainer.collect(r, 0)[0], 0)
    assert same_weights(run.model, warm_model())  # equal rewards teach nothing
    before, after = warm_model().parameters(), decayed.model.parameters()
    for p, q in zip(before, after, strict=True):
        assert torch.allclose(q, p * (1 - 0.1 * 0.5) ** 2, rtol=1e-5)


# Rewards and advantages


def test_advantages_compare_the_responses_to_one_prompt():
    run = prepared(reward=fixed_noise)
    batch, metrics = trainer.collect(run, 0)
    scores = torch.tensor(fixed_noise(batch.rollout.texts(TOKENIZER)))
    expected = group_relative(scores, torch.arange(4).repeat_interleave(4))
    assert torch.allclose(batch.advantages, expected[:, None].expand(-1, 24), atol=1e-6)
    assert metrics["reward"] == pytest.approx(scores.mean().item())


def test_the_critic_gives_every_token_an_advantage():
    run = prepared("ppo", reward=fixed_noise, gamma=0.9, lam=0.8, micro_batch_size=3)
    with torch.no_grad():
        run.critic.score.weight.normal_(generator=torch.Generator().manual_seed(0))
    batch, _ = trainer.collect(run, 0)
    rollout, mask = batch.rollout, batch.rollout.mask
    scores = torch.tensor(fixed_noise(rollout.texts(TOKENIZER)))
    rewards = torch.zeros_like(mask)
    for i, n in enumerate(rollout.length.long()):
        rewards[i, n - 1] = scores[i]
    with torch.no_grad():
        old_values = values(run.critic, rollout)
    advantages, targets = gae(rewards, old_values, mask, 0.9, 0.8)
    assert torch.allclose(batch.old_values, old_values, atol=ROUNDING)
    assert torch.allclose(batch.targets, targets, atol=ROUNDING)
    assert torch.allclose(batch.advantages, whiten(advantages, mask), atol=ROUNDING)


def test_a_reward_of_the_readers_own_is_what_is_learned():
    """Paid for guessing, the policy guesses; accuracy stays the verifier's."""

    def likes_guesses(completions, **_):
        return [2.0 * c.startswith("#") for c in completions]

    history = small_run(rollouts=8, learning_rate=1e-3, reward=likes_guesses, **COURSE)
    assert history["habit/guess"][0] < 0.7
    assert history["habit/guess"][-1] > 0.9
    for reward, share in zip(history["reward"], history["habit/guess"], strict=True):
        assert reward == pytest.approx(2 * share)
    assert history["habit_accuracy/guess"][-1] < 0.5


def test_the_reward_receives_the_columns_of_the_task():
    seen = []

    def spy(prompts, completions, **columns):
        seen.append((prompts, completions, columns))
        return [float(i % 2) for i, _ in enumerate(completions)]

    small_run(rollouts=1, reward=spy)
    ((prompts, completions, columns),) = seen
    assert columns.keys() == {"answer", "terms"}
    assert len(prompts) == len(completions) == 16
    for i, prompt in enumerate(prompts):
        assert prompt == prompts[i - i % 4]
        digits = [int(d) for d in prompt[:-1].split("+")]
        assert columns["answer"][i] == sum(digits)
        assert columns["terms"][i] == len(digits)


class Echo:
    """A world of another kind: repeat the digit."""

    habits = ("right",)

    def __init__(self):
        self.drawn = []

    def sample(self, n, seed):
        self.drawn.append(("train", seed))
        rng = random.Random(seed)
        return [{"prompt": f"{rng.randrange(10)}="} for _ in range(n)]

    def held_out(self, n, seed=0):
        self.drawn.append(("held out", seed))
        return [{"prompt": f"{i % 10}="} for i in range(n)]

    def reward(self, prompts, completions):
        pairs = zip(prompts, completions, strict=True)
        return [float(c.startswith(p[0])) for p, c in pairs]

    def habit(self, completion):
        return "right" if completion[:1].isdigit() else "other"


def test_any_object_with_the_five_names_is_a_world():
    task = Echo()
    history = small_run(
        model=random_model(),
        task=task,
        rollouts=15,
        max_new_tokens=2,
        learning_rate=3e-3,
        eval_problems=40,
        **COURSE,
    )
    assert history["reward"][0] < 0.1
    assert sum(history["reward"][-3:]) / 3 > 0.3
    assert history["habit/right"][0] < 0.6 < 0.8 < history["habit/right"][-1]
    assert history.accuracy == evaluate(
        history.model, TOKENIZER, task, problems=40, max_new_tokens=2
    )


# KL


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_in_the_loss_adds_beta_times_the_estimate(estimator):
    runs = [
        prepared(beta=beta, kl_estimator=estimator, dtype="float64")
        for beta in (1e-9, 0.3)
    ]
    for run in runs:
        run.reference.load_state_dict(random_model().double().state_dict())
    batch, metrics = trainer.collect(runs[0], 0)
    counts = {
        "batch_tokens": batch.rollout.mask.sum().item(),
        "batch_sequences": len(batch.rollout),
    }
    without, with_kl = (optimise._loss(run, batch, counts)[0] for run in runs)
    logp, ref_logp = (
        log_probs(model, batch.rollout)[0]
        for model in (runs[0].model, runs[0].reference)
    )
    mask = batch.rollout.mask
    kl = aggregate(ESTIMATORS[estimator](logp, ref_logp), mask, "seq_mean_token_mean")
    assert (with_kl - without).item() == pytest.approx(0.3 * kl.item(), rel=1e-4)
    per_token = ((logp - ref_logp) * mask).sum() / mask.sum()
    assert metrics["kl"] == pytest.approx(per_token.item(), rel=1e-4)
    assert metrics["kl"] > 0.5


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_kl_in_the_reward_takes_beta_times_the_log_ratio_off(algorithm):
    run = prepared(algorithm, beta=0.3, kl_in="reward")
    run.reference.load_state_dict(random_model().state_dict())
    batch, _ = trainer.collect(run, 0)
    rollout, mask = batch.rollout, batch.rollout.mask
    texts = rollout.texts(TOKENIZER)
    rows = run.task.sample(4, seed_for(0, 0, "q"))
    answers = [row["answer"] for row in rows for _ in range(4)]
    scores = torch.tensor(run.task.reward([], texts, answer=answers))
    with torch.no_grad():
        ref_logp, _ = log_probs(run.reference, rollout)
    rewards = -0.3 * (rollout.logp - ref_logp) * mask
    for i, n in enumerate(rollout.length.long()):
        rewards[i, n - 1] += scores[i]
    if algorithm == "grpo":
        expected = group_relative(rewards.sum(-1), rollout.group)[:, None] * mask
    else:
        expected = whiten(gae(rewards, torch.zeros_like(mask), mask)[0], mask)
    assert torch.allclose(batch.advantages * mask, expected, atol=1e-4)
    counts = {"batch_tokens": mask.sum().item(), "batch_sequences": len(rollout)}
    free = replace(run.config, beta=0.0)
    loss, _, _ = optimise._loss(run, batch, counts)
    run.config = free
    assert optimise._loss(run, batch, counts)[0] == loss  # nothing in the loss


def test_beta_holds_the_policy_near_where_it_started():
    settings = {**COURSE, "prompts_per_rollout": 8, "rollouts": 7}
    loose = small_run(beta=1e-6, **settings)["kl"]
    assert loose[0] == pytest.approx(0, abs=ROUNDING)
    for kl_in in ("loss", "reward"):
        tight = small_run(beta=3.0, kl_in=kl_in, **settings)["kl"]
        assert tight[0] == pytest.approx(0, abs=ROUNDING)
        assert 0 < sum(tight) < 0.5 * sum(loose)


def test_without_beta_there_is_no_reference_and_no_kl_column():
    assert prepared().reference is None
    assert "kl" not in small_run(rollouts=1).columns


def test_the_reference_never_moves():
    run = prepared(beta=0.1, epochs=3)
    trainer._step(run, 0)
    assert same_weights(run.reference, warm_model())
    assert not same_weights(run.model, warm_model())
    assert not any(p.requires_grad for p in run.reference.parameters())


# Entropy, critic


def test_the_entropy_bonus_raises_entropy():
    """With equal rewards nothing else acts."""
    run = prepared(reward=always_one, entropy_bonus=0.5, epochs=3)
    batch, _ = trainer.collect(run, 0)
    trainer.update(run, batch, 0)
    mask = batch.rollout.mask
    before, after = (
        (log_probs(model, batch.rollout)[1].sum() / mask.sum()).item()
        for model in (warm_model(), run.model)
    )
    assert after > before + 0.02


def test_the_loss_is_less_the_entropy_bonus():
    plain, bonus = (
        prepared(dtype="float64"),
        prepared(dtype="float64", entropy_bonus=0.2),
    )
    batch, _ = trainer.collect(plain, 0)
    mask = batch.rollout.mask
    counts = {"batch_tokens": mask.sum().item(), "batch_sequences": 16}
    difference = (
        optimise._loss(bonus, batch, counts)[0]
        - optimise._loss(plain, batch, counts)[0]
    )
    entropy = log_probs(plain.model, batch.rollout)[1]
    mean = (entropy.sum(-1) / mask.sum(-1)).mean()
    assert difference.item() == pytest.approx(-0.2 * mean.item(), rel=1e-4)


def test_ppo_trains_its_critic():
    """On one batch seen again and again, the value loss falls to a fraction."""
    run = prepared("ppo", value_clip=None, epochs=4, **COURSE)
    batch, _ = trainer.collect(run, 0)
    assert (batch.old_values == 0).all()
    losses = [trainer.update(run, batch, step)["value_loss"] for step in range(3)]
    assert losses[-1] < 0.6 * losses[0]
    right = batch.targets > 0.5
    found = values(run.critic, batch.rollout)
    assert found[right & batch.rollout.mask.bool()].mean() > 0.3
    assert found[~right & batch.rollout.mask.bool()].mean() < 0.3


def test_the_value_loss_moves_the_critic_alone():
    frozen = prepared("ppo", reward=fixed_noise)
    moving = prepared("ppo", reward=fixed_noise, critic_learning_rate=1e-2)
    for run in (frozen, moving):
        trainer.update(run, trainer.collect(run, 0)[0], 0)
    assert same_weights(frozen.model, moving.model)
    assert largest_difference(frozen.critic, moving.critic) > 1e-3


def test_methods_without_a_critic_have_none():
    assert prepared().critic is None
    assert "value_loss" not in small_run(rollouts=1).columns
    assert "value_loss" in small_run("ppo", rollouts=1).columns


# Staleness


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_policy_that_does_not_move_is_reported(algorithm):
    with pytest.raises(StalenessError, match="after 2 rollouts with K = 2"):
        small_run(algorithm, rollouts=2, learning_rate=1e-12)


def test_it_is_reported_after_five_rollouts_and_not_at_the_end():
    with pytest.raises(StalenessError, match="after 5 rollouts"):
        small_run(rollouts=1000, learning_rate=1e-12)


def test_equal_rewards_are_reported_too():
    with pytest.raises(StalenessError, match="Check the rewards"):
        small_run(rollouts=2, reward=always_one)


def test_one_update_is_refused_unless_asked_for():
    with pytest.raises(ValueError, match="allow_on_policy=True"):
        small_run(minibatches=1)
    history = small_run(minibatches=1, rollouts=2, allow_on_policy=True)
    assert max(history["ratio/max_deviation"]) < ROUNDING
    assert max(map(abs, history["loss"])) < ROUNDING  # ratio 1, centred advantages
    assert min(history["grad_norm"]) > 0.01


# Groups without a gradient


def close_weights(one, other) -> bool:
    """Up to the order of a sum."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=0, atol=1e-8) for a, b in pairs)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_groups_of_equal_rewards_are_not_computed_and_change_nothing(
    aggregation, monkeypatch
):
    """Nor do rows at exactly the mean: a group is kept or left out as a whole."""

    def rewards(prompts, completions, **columns):
        third = [0.0, 0.5, 1.0, 0.5]  # two rows at the mean
        return [third[i % 4] if i < 8 else 1.0 for i in range(len(prompts))]

    settings = {
        "reward": rewards,
        "micro_batch_size": 4,
        "hyperparameters": {"aggregation": aggregation},
        "dtype": "float64",  # six updates amplify what a sum's order changes
    }
    computed, every = [], optimise._loss

    def counted(run, part, counts):
        computed.append(len(part.rollout))
        return every(run, part, counts)

    monkeypatch.setattr(optimise, "_loss", counted)
    quick = small_run(**settings)
    rows = sum(computed)
    monkeypatch.setattr(optimise, "_with_gradient", lambda run, batch, chosen: chosen)
    full = small_run(**settings)
    assert rows < 0.7 * (sum(computed) - rows)
    assert close_weights(quick.model, full.model)
    assert quick.accuracy == full.accuracy
    for name in ("loss", "grad_norm", "clip_ratio/region_mean"):
        assert quick[name] == pytest.approx(full[name], abs=1e-8), name


@pytest.mark.parametrize(
    "settings", [{"beta": 0.1}, {"entropy_bonus": 0.1}, {"algorithm": "ppo"}]
)
def test_no_group_is_left_out_when_every_token_has_a_gradient(settings):
    run = prepared(reward=always_one, **settings)
    batch, _ = trainer.collect(run, 0)
    chosen = torch.arange(8)
    assert optimise._with_gradient(run, batch, chosen) is chosen


# Dynamic sampling, overlong responses


def right_for_some(prompts, completions, **_):
    """Groups differ for prompts of three terms, are equal for the rest."""
    noise = fixed_noise(completions)
    return [
        x if p.count("+") == 2 else 1.0 for p, x in zip(prompts, noise, strict=True)
    ]


def terms_of(batch) -> list[int]:
    """Terms in the prompt of each group trained on."""
    rollout = batch.rollout
    first = [(rollout.group == g).nonzero()[0, 0] for g in rollout.group.unique()]
    texts = TOKENIZER.batch_decode(
        [rollout.ids[i, : rollout.prompt_length[i]] for i in first]
    )
    return [text.count("+") + 1 for text in texts]


def test_dynamic_sampling_fills_the_batch_with_whole_groups_that_differ():
    run = prepared(reward=right_for_some, dynamic_sampling=True, max_sampling_rounds=50)
    plain = prepared(reward=right_for_some, dynamic_sampling=False)
    assert terms_of(trainer.collect(plain, 0)[0]) != [3, 3, 3, 3]
    batch, metrics = trainer.collect(run, 0)
    assert terms_of(batch) == [3, 3, 3, 3]
    assert len(batch.rollout) == 16
    assert batch.rollout.group.bincount().tolist().count(4) == 4  # whole groups
    assert (batch.advantages != 0).all()
    assert metrics["sampling/rounds"] > 1
    # every sample was paid for, and the reward is that of all
    assert metrics["num_samples"] == 16 * metrics["sampling/rounds"]
    assert metrics["reward"] > 0.6  # of those kept it would be 0.5
    assert 0.5 < metrics["frac_reward_zero_std"] < 1


def test_refills_bring_new_problems_and_keep_the_order_of_drawing():
    """The first round is the one that a run without dynamic sampling draws."""
    run = prepared(dynamic_sampling=True, reward=right_for_some, max_sampling_rounds=9)
    first = experience._draw(run, 0)
    again = experience._draw(run, 0, again=1)
    assert first.rollout.ids.tolist() != again.rollout.ids.tolist()
    joined, rows, rounds = experience._refill(run, 0, first)
    assert joined.texts[:16] == first.texts
    assert joined.texts[16:32] == again.texts
    assert 2 < rounds <= 9
    assert rows.tolist() == sorted(rows.tolist())


def test_a_batch_that_can_not_be_filled_is_trained_on_as_it_is():
    run = prepared(dynamic_sampling=True, reward=right_for_some, max_sampling_rounds=1)
    for step in range(40):
        try:
            batch, metrics = trainer.collect(run, step)
        except trainer.DynamicSamplingError:
            continue
        assert metrics["sampling/rounds"] == 1
        assert 0 < len(batch.rollout) <= 16
        assert set(terms_of(batch)) == {3}
        if len(batch.rollout) < 16:
            measured = trainer.update(run, batch, step)
            assert measured["grad_norm"] > 0
            return
    raise AssertionError("every round was full")


def test_a_task_without_a_mixed_group_is_an_error_that_says_so():
    with pytest.raises(trainer.DynamicSamplingError, match=r"2 rounds of 4 prompts"):
        small_run("dapo", reward=always_one, max_sampling_rounds=2)


def test_dynamic_sampling_asks_the_reward_before_the_punishment():
    """Lengths differ everywhere: punished rewards would let every group through."""
    run = prepared(
        "dapo", reward=right_for_some, overlong_share=1.0, max_sampling_rounds=30
    )
    assert set(terms_of(trainer.collect(run, 0)[0])) == {3}


def test_the_settings_of_a_paper_hold_unless_they_are_given():
    dapo, grpo = ALGORITHMS["dapo"], ALGORITHMS["grpo"]
    default = TrainConfig().completed(dapo)
    assert (default.dynamic_sampling, default.overlong_share) == (True, 0.2)
    own = TrainConfig(dynamic_sampling=False, overlong_share=0.0).completed(dapo)
    assert (own.dynamic_sampling, own.overlong_share) == (False, 0.0)
    other = TrainConfig().completed(grpo)
    assert (other.dynamic_sampling, other.overlong_share) == (False, 0.0)
    assert prepared("dapo").config.dynamic_sampling is True


def test_the_punishment_is_added_before_the_advantages():
    """L_max 24, L_cache 12: with equal scores only the length is left to compare."""
    settings = {"reward": always_one, "overlong_share": 0.5}
    batch, metrics = trainer.collect(prepared(**settings), 0)
    length = batch.rollout.length
    shaped = 1 + ((12 - length) / 12).clamp(-1, 0)
    expected = group_relative(shaped, batch.rollout.group)
    assert (expected != 0).any()
    assert torch.allclose(batch.advantages[:, 0], expected)
    assert metrics["reward"] == 1  # as the verifier paid


def test_overlong_filtering_takes_the_loss_of_truncated_responses_away():
    run = prepared(overlong_filtering=True, reward=fixed_noise)
    batch, _ = trainer.collect(run, 0)
    truncated = batch.rollout.truncated
    assert 0 < truncated.sum() < len(truncated)
    assert (batch.mask[truncated] == 0).all()
    assert torch.equal(batch.mask[~truncated], batch.rollout.mask[~truncated])
    assert batch.rollout.mask[truncated].sum() > 0  # still there to be described
    counts = {"batch_tokens": batch.mask.sum(), "batch_sequences": 16}
    loss, _, _ = optimise._loss(run, batch, counts)
    loss.backward()
    whole = [p.grad.clone() for p in run.model.parameters()]
    run.model.zero_grad()
    part = next(
        optimise._micro_batches(
            replace_config(run, micro_batch_size=16),
            batch,
            (~truncated).nonzero()[:, 0],
        )
    )
    optimise._loss(run, part, counts)[0].backward()
    for one, other in zip(whole, run.model.parameters(), strict=True):
        assert torch.allclose(one, other.grad, atol=1e-6)


def test_a_rollout_of_nothing_but_truncated_responses_has_no_gradient():
    run = prepared(overlong_filtering=True, max_new_tokens=1, reward=fixed_noise)
    batch, metrics = trainer.collect(run, 0)
    assert metrics["completions/clipped_ratio"] == 1
    measured = trainer.update(run, batch, 0)
    assert measured["grad_norm"] == measured["loss"] == 0


def replace_config(run, **settings):
    return replace(run, config=replace(run.config, **settings))


# What is recorded


def hand_made_rollout() -> Rollout:
    """Two prompts of 3 and 4 tokens, two responses each, of 2, 4, 1 and 4 tokens."""
    lengths = torch.tensor([2, 4, 1, 4])
    mask = (torch.arange(4) < lengths[:, None]).float()
    return Rollout(
        ids=torch.zeros(4, 8, dtype=torch.long),
        prompt_length=torch.tensor([3, 3, 4, 4]),
        mask=mask,
        logp=-mask,
        entropy=2 * mask,
        truncated=torch.tensor([False, True, False, False]),
        group=torch.tensor([0, 0, 1, 1]),
    )


TEXTS = ["3+9=12;#12", "#13", "#5", "#7"]


def hand_made_draw(scores, correct) -> experience.Drawn:
    return experience.Drawn(
        hand_made_rollout(), TEXTS, torch.tensor(scores), torch.tensor(correct)
    )


def test_a_rollout_in_numbers():
    run = prepared(prompts_per_rollout=2, group_size=2)
    found = experience._describe(
        run, hand_made_draw([1.0, 0.0, 0.5, 0.5], [1.0, 0.0, 0.0, 1.0])
    )
    assert found == {
        "reward": 0.5,
        "reward_std": pytest.approx(0.5**0.5 / 2),
        "frac_reward_zero_std": 0.5,
        "entropy": 2.0,
        "num_tokens": 11 + 14,
        "num_samples": 4.0,
        "completions/mean_length": 11 / 4,
        "completions/clipped_ratio": 0.25,
        "length/correct": 3.0,
        "length/wrong": 2.5,
        "habit/careful": 0.25,
        "habit_accuracy/careful": 1.0,
        "habit/guess": 0.75,
        "habit_accuracy/guess": pytest.approx(1 / 3),
        "habit/ramble": 0.0,
        "habit_accuracy/ramble": None,
    }


def test_a_rollout_without_wrong_answers_has_no_length_of_them():
    run = prepared(prompts_per_rollout=2, group_size=2)
    found = experience._describe(run, hand_made_draw([1.0] * 4, [1.0] * 4))
    assert found["length/wrong"] is None
    assert found["length/correct"] == 11 / 4
    assert found["frac_reward_zero_std"] == 1
    assert found["reward_std"] == 0


@pytest.mark.parametrize("prompts", [1, 4])
def test_single_responses_are_described_without_a_group(prompts):
    """PPO may take one response a prompt; the spread is then the batch's, or none."""
    settings = {
        "prompts_per_rollout": prompts,
        "group_size": 1,
        "minibatches": 1,
        "epochs": 2,
        "rollouts": 2,
        "learning_rate": 1e-2,
        "reward": fixed_noise,
    }
    history = small_run("ppo", **settings)
    assert history == small_run("ppo", **settings)  # NaN would not equal itself
    assert all((s > 0) == (prompts > 1) for s in history["reward_std"])


def test_history_counts_rollouts_tokens_and_evaluations():
    history = small_run(rollouts=5, eval_every=2)
    assert history["step"] == [0, 1, 2, 3, 4]
    measured = [row["accuracy"] is not None for row in history.rows]
    assert measured == [False, True, False, True, True]
    tokens = history["num_tokens"]
    lengths = [16 * mean for mean in history["completions/mean_length"]]
    grown = [b - a for a, b in zip([0, *tokens], tokens, strict=False)]
    prompts = [more - own for more, own in zip(grown, lengths, strict=True)]
    assert all(16 * 4 <= n <= 16 * 10 for n in prompts)
    assert all(seconds > 0 for seconds in history["step_time"])


def test_habits_and_their_accuracy_add_up_to_the_reward():
    for row in small_run(rollouts=2, **COURSE).rows:
        total = sum(
            row[f"habit/{habit}"] * (row[f"habit_accuracy/{habit}"] or 0)
            for habit in Arithmetic.habits
        )
        assert total == pytest.approx(row["reward"])


def test_ratio_metrics_are_in_order():
    for row in small_run(rollouts=2, epochs=2).rows:
        low, middle, high = (row[f"log_ratio/q{q}"] for q in ("01", "50", "99"))
        assert low < middle < high
        assert low < 0 < high
        assert row["ratio/max_deviation"] >= max(np.expm1(high), -np.expm1(low))


# Held-out problems


def test_evaluate_takes_held_out_problems_alone():
    task = Echo()
    for seed in (0, 7):
        evaluate(
            random_model(), TOKENIZER, task, problems=9, max_new_tokens=2, seed=seed
        )
    assert task.drawn == [("held out", 0), ("held out", 7)]


def test_the_seed_of_evaluate_decides_the_answers_too():
    answers = []

    class Spy(Echo):
        def reward(self, prompts, completions, **columns):
            answers.append(completions)
            return super().reward(prompts, completions, **columns)

    for seed in (0, 0, 7):
        evaluate(random_model(), TOKENIZER, Spy(), problems=9, seed=seed)
    assert answers[0] == answers[1] != answers[2]


def test_training_never_sees_a_held_out_problem():
    """The hash of the prompt divides the two worlds."""
    trained, measured = [], []

    class Spy(Arithmetic):
        def reward(self, prompts, completions, **columns):
            measured.append(prompts)
            return Arithmetic.reward(prompts, completions, **columns)

    def reward(prompts, completions, **_):
        trained.extend(prompts)
        return fixed_noise(completions)

    small_run(
        rollouts=3, task=Spy(), reward=reward, prompts_per_rollout=32, eval_problems=50
    )
    assert len(trained) == 3 * 32 * 4
    assert all(zlib.crc32(p.encode()) % 8 != 0 for p in trained)
    *_, last = measured
    assert len(last) == 50
    assert all(zlib.crc32(p.encode()) % 8 == 0 for p in last)


def test_evaluation_does_not_depend_on_the_run():
    """Each evaluation meets the same problems; another seed, others."""

    def accuracy(seed=0):
        return evaluate(
            warm_model(), TOKENIZER, problems=64, max_new_tokens=20, seed=seed
        )

    assert accuracy() == accuracy()
    assert len({accuracy(seed) for seed in range(4)}) > 1


# What is refused


WRONG = {
    "rollouts": [0, -1, 1.5, "3"],
    "prompts_per_rollout": [0, 2.0],
    "group_size": [0, None],
    "max_new_tokens": [0, "48"],
    "temperature": [0, -1.0, float("nan")],
    "minibatches": [0, 3],
    "epochs": [0, 0.5],
    "micro_batch_size": [0, -16],
    "learning_rate": [0, -1e-3, float("nan")],
    "warmup_updates": [-1],
    "weight_decay": [-0.1, float("nan")],
    "max_grad_norm": [0, -1.0],
    "entropy_bonus": [-0.1],
    "beta": [-0.1, float("nan")],
    "kl_in": ["Loss", None],
    "kl_estimator": ["k4", ""],
    "gamma": [-0.1, 1.1, float("nan")],
    "lam": [-0.1, 1.1],
    "critic_learning_rate": [0, -1.0],
    "value_clip": [0, -0.2],
    "eval_every": [0],
    "eval_problems": [0],
    "dtype": ["float16", torch.float32],
    "checkpoint_every": [0],
    "max_sampling_rounds": [0, 1.5],
    "overlong_share": [-0.1, 1.5, float("nan")],
    "rollout_dtype": ["float16", "bf16"],
    "router_noise": [-0.1, float("nan")],
    "max_rollout_weight": [0, -1.0, float("nan")],
    "replay": ["R1", "r3", True],
    "router_shift_floor": [0, 1.1, float("nan")],
    "placement": ["before", None],
    "router_aux_loss": [-1e-3],
}
WRONG |= {
    name: ["false", "no", 0, 1]
    for name in (
        "allow_on_policy dynamic_sampling overlong_filtering router_shift detach_shift"
    ).split()
}
LATER = {"seed", "hyperparameters", "device"}
"""No value of these is wrong by itself."""


def test_every_setting_has_wrong_values_here():
    assert WRONG.keys() | LATER == {field.name for field in fields(TrainConfig)}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]]
)
def test_a_wrong_setting_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        TrainConfig(**{name: value})


@pytest.mark.parametrize(
    ("dtype", "rollout_dtype"), [("float32", "float64"), ("float64", "bfloat16")]
)
def test_a_rollout_dtype_that_could_not_act_is_refused(dtype, rollout_dtype):
    with pytest.raises(ValueError, match="only bfloat16 and float32 can differ"):
        TrainConfig(dtype=dtype, rollout_dtype=rollout_dtype)


@pytest.fixture
def no_work(monkeypatch):
    """Sampling, warm start or a step of training would be noticed."""

    def work(*_, **__):
        raise AssertionError("work was done")

    for name in ("sample", "warm_start", "frozen_copy", "evaluate"):
        monkeypatch.setattr(trainer, name, work)
    monkeypatch.setattr(experience, "sample", work)


def tokenizer_with_more_tokens():
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<extra>"])
    return tokenizer


REFUSED = {
    "unknown method": ({"algorithm": "grppo"}, ValueError, "did you mean 'grpo'"),
    "one response": ({"group_size": 1}, ValueError, "group_size must be ≥ 2"),
    "one response, dynamic sampling": (
        {"algorithm": "ppo", "group_size": 1, "dynamic_sampling": True},
        ValueError,
        "dynamic_sampling keeps groups whose rewards differ",
    ),
    "one update": ({"minibatches": 1}, ValueError, "one update per rollout"),
    "unknown hyperparameter": (
        {"hyperparameters": {"epsilonn": 0.2}},
        TypeError,
        "no hyperparameter 'epsilonn', did you mean 'epsilon'",
    ),
    "another method's": ({"hyperparameters": {"tau_pos": 1.0}}, TypeError, "tau_pos"),
    "no room": ({"hyperparameters": {"epsilon": 0.0}}, ValueError, "must be > 0"),
    "unknown average": (
        {"hyperparameters": {"aggregation": "token_meam"}},
        ValueError,
        "unknown aggregation 'token_meam'",
    ),
    "an argument of the loss": (
        {"hyperparameters": {"batch_tokens": 1}},
        TypeError,
        "no hyperparameter 'batch_tokens'",
    ),
    "infinite temperature": (
        {"algorithm": "sapo", "hyperparameters": {"tau_neg": float("inf")}},
        ValueError,
        "tau_neg must be > 0 and finite",
    ),
    "short constant": (
        {"algorithm": "dr_grpo", "hyperparameters": {"max_length": 8}},
        ValueError,
        "max_length 8 is below max_new_tokens 24",
    ),
    "shift without a ratio": (
        {"algorithm": "reinforce", "router_shift": True},
        ValueError,
        "reinforce has none without correct=True",
    ),
    "a bound below zero that nothing reads": (
        {"hyperparameters": {"epsilon": -1, "epsilon_low": 0.2, "epsilon_high": 0.2}},
        ValueError,
        "must be > 0, got -1",
    ),
    "broken groups": (
        {"hyperparameters": {"aggregation": "group_token_mean"}, "micro_batch_size": 6},
        ValueError,
        "micro_batch_size 6 is no multiple of group_size 4",
    ),
    "unknown device": ({"device": "gpu"}, ValueError, "unknown device 'gpu'"),
    "model alone": ({"tokenizer": None}, ValueError, "model and tokenizer together"),
    "too few positions": ({"max_new_tokens": 125}, ValueError, "128 positions"),
    "resume from nowhere": ({"resume": True}, ValueError, "needs a checkpoint_dir"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused_before_any_work(case, no_work):
    change, error, message = REFUSED[case]
    change = {"algorithm": "grpo", "tokenizer": TOKENIZER, **change}
    settings = {k: change.pop(k) for k in list(change) if hasattr(SMALL, k)}
    config = replace(SMALL, **settings)
    with pytest.raises(error, match=message):
        train(config=config, model=random_model(), progress=False, **change)


def test_a_wrong_config_is_refused_before_the_warm_start(no_work):
    with pytest.raises(ValueError, match="one update per rollout"):
        train("grpo", config=replace(SMALL, minibatches=1), progress=False)


def test_an_unwritable_folder_is_refused_before_the_warm_start(no_work, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match="cannot write checkpoints"):
        train("grpo", checkpoint_dir=str(tmp_path / "file" / "x"), progress=False)


def test_a_tokenizer_of_another_model_is_refused(no_work):
    with pytest.raises(ValueError, match="the tokenizer has 19 tokens"):
        train("grpo", model=random_model(), tokenizer=tokenizer_with_more_tokens())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_cuda_device_is_refused_before_any_work(no_work):
    with pytest.raises(ValueError, match="torch sees no CUDA device"):
        train("grpo", config=replace(SMALL, device="cuda"), progress=False)


def test_a_broken_reward_is_reported_with_its_cause():
    def broken(completions, **_):
        return completions[0].nothing

    with pytest.raises(ValueError, match="broken raised AttributeError") as caught:
        small_run(reward=broken)
    assert isinstance(caught.value.__cause__, AttributeError)


# Learning


def test_grpo_learns():
    """15 rollouts take the warm start from a third right to nearly all."""
    config = TrainConfig(rollouts=15, seed=0)
    history = train(
        "grpo",
        config=config,
        model=warm_model(),
        tokenizer=TOKENIZER,
        progress=False,
    )
    assert history["reward"][0] < 0.5
    assert history.accuracy >= 0.85
    assert history["habit/careful"][-1] > 0.8
    assert history["habit/careful"][0] < 0.5


def test_the_defaults_are_the_warm_start_and_the_arithmetic_world():
    config = replace(SMALL, rollouts=1)
    by_default = train("grpo", config=config, progress=False)
    assert by_default == small_run(rollouts=1, task=Arithmetic())


def test_an_algorithm_may_be_given_itself():
    assert small_run(ALGORITHMS["grpo"], rollouts=1) == small_run(rollouts=1)


def test_a_run_off_the_main_thread_is_the_same_run():
    """There Ctrl-C cannot be caught, and nothing else differs."""
    found = []
    thread = threading.Thread(target=lambda: found.append(small_run(rollouts=2)))
    thread.start()
    thread.join()
    assert found == [small_run(rollouts=2)]


def test_dropout_does_not_act_in_training():
    """GPT-2 comes with dropout 0.1: two runs, and sampler and scorer, agree."""
    settings = {"minibatches": 1, "allow_on_policy": True, "reward": fixed_noise}
    first = small_run(model=gpt2(), **settings)
    assert first == small_run(model=gpt2(), **settings)
    assert max(first["ratio/max_deviation"]) < 1e-4
