"""From problems to a batch: sampled, scored, compared, and described."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from refimpl import collect as collecting
from refimpl import update as updating
from refimpl.advantages import gae, group_relative, whiten
from refimpl.algorithms import ALGORITHMS
from refimpl.collect import DynamicSamplingError, collect
from refimpl.config import TrainConfig
from refimpl.dice import seed_for
from refimpl.models import in_int8, lora
from refimpl.rollout import Rollout
from refimpl.scoring import log_probs, values
from refimpl.tasks import Arithmetic
from refimpl.update import update
from tests.worlds import (
    COURSE,
    ROUNDING,
    TOKENIZER,
    always_one,
    disturb,
    fixed_noise,
    prepared,
    random_model,
    random_moe,
    small_run,
    whole_loss,
)

# The dice


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
    first, second = (collect(run, step)[0].rollout for step in (0, 1))
    assert first.ids.tolist() != second.ids.tolist()
    again = collect(run, 0)[0].rollout
    assert torch.equal(again.ids, first.ids)
    assert torch.equal(again.logp, first.logp)


# Old log-probs


def test_in_bfloat16_old_log_probs_are_scored_and_not_the_samplers(monkeypatch):
    """By how much the two differ is the processor's affair, so the test adds 1 nat."""
    sampled = collecting.sample

    def off_by_one(*arguments, **keywords):
        rollout = sampled(*arguments, **keywords)
        return replace(rollout, logp=rollout.logp + rollout.mask)

    monkeypatch.setattr(collecting, "sample", off_by_one)
    settings = {"rollouts": 1, "minibatches": 1, "allow_on_policy": True}
    half, single = (
        small_run(dtype=dtype, **settings).rows[0] for dtype in ("bfloat16", "float32")
    )
    assert half["ratio/max_deviation"] < 0.2  # 2⁻⁸ relative, on logits up to 10
    assert half["sampling/kl"] == pytest.approx(math.exp(-1), abs=0.1)  # e^−d − 1 + d
    assert single["ratio/max_deviation"] == pytest.approx(1 - math.exp(-1), abs=0.01)


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_every_log_prob_of_a_run_is_taken_at_its_temperature(temperature):
    """π_old's, the reference's and the first update's are those of the sampler."""
    run = prepared(temperature=temperature, beta=0.1, reward=fixed_noise)
    batch, metrics = collect(run, 0)
    near = ROUNDING / min(1.0, temperature)
    assert (batch.ref_logp - batch.old_logp).abs().max() < near
    assert abs(metrics["kl"]) < near
    other, _ = log_probs(run.model, batch.rollout)
    assert (other - batch.old_logp).abs().max() > 0.1
    run.config = replace(run.config, minibatches=1, learning_rate=1e-12)
    assert update(run, batch, 0)["ratio/max_deviation"] < near


def test_scored_log_probs_are_taken_at_the_temperature_too():
    """A sampler in bfloat16 is not π_old, so π_old's log-probs are scored."""
    run = prepared(temperature=0.6, rollout_dtype="bfloat16")
    batch, metrics = collect(run, 0)
    with torch.no_grad():
        right, _ = log_probs(run.model, batch.rollout, 0.6)
    assert (batch.old_logp - right).abs().max() < 2 * ROUNDING
    assert metrics["sampling/sampling_logp_difference/mean"] < 0.1


@pytest.mark.parametrize(
    ("dtype", "rollout_dtype", "half"),
    [
        ("float32", "bfloat16", True),
        ("bfloat16", "float32", False),
        ("bfloat16", "int8", True),
        ("float32", "int8", False),
    ],
)
def test_the_sampler_computes_in_the_rollouts_dtype(
    dtype, rollout_dtype, half, monkeypatch
):
    """Seen by autocast: by how far its numbers differ is the processor's affair."""
    seen, sampled = [], collecting.sample

    def spy(*arguments, **keywords):
        seen.append(torch.is_autocast_enabled("cpu"))
        return sampled(*arguments, **keywords)

    monkeypatch.setattr(collecting, "sample", spy)
    collect(prepared(dtype=dtype, rollout_dtype=rollout_dtype), 0)
    assert seen == [half]


def test_an_int8_sampler_rounds_matrices_and_gives_the_policy_its_own_back(monkeypatch):
    """By hand: every row in steps of its largest entry over 127."""
    run, during, sampled = prepared(rollout_dtype="int8"), {}, collecting.sample

    def spy(model, *arguments, **keywords):
        during.update({n: p.detach().clone() for n, p in model.named_parameters()})
        return sampled(model, *arguments, **keywords)

    monkeypatch.setattr(collecting, "sample", spy)
    before = {n: p.detach().clone() for n, p in run.model.named_parameters()}
    batch, metrics = collect(run, 0)
    for name, p in run.model.named_parameters():
        assert torch.equal(p, before[name]), name
        whole = p.ndim < 2 or "embed_tokens" in name or "lm_head" in name
        if whole:
            assert torch.equal(during[name], p), name
            continue
        step = before[name].abs().amax(-1, keepdim=True) / 127
        count = during[name] / step
        assert_close(count, count.round(), rtol=0, atol=1e-3)
        assert_close(count.abs().amax(-1), torch.full_like(count[..., 0], 127.0))
        assert ((during[name] - before[name]).abs() <= 0.501 * step).all(), name
        assert (during[name] != before[name]).any(), name
    assert sum(p.ndim > 1 for p in before.values()) > 10
    assert metrics["sampling/kl"] > 0
    with torch.no_grad():
        own, _ = log_probs(run.model, batch.rollout)
    assert_close(batch.old_logp, own, rtol=0, atol=2 * ROUNDING)  # of its own weights


def test_an_int8_sampler_leaves_routers_alone():
    """As engines do."""
    model = random_moe()
    own = {n: (p.data_ptr(), p.detach().clone()) for n, p in model.named_parameters()}
    with in_int8(model):
        for name, p in model.named_parameters():
            rounded = not torch.equal(p, own[name][1])
            assert rounded == ("experts" in name or "_proj" in name), name
    for name, p in model.named_parameters():
        assert (p.data_ptr(), True) == (own[name][0], torch.equal(p, own[name][1]))


def test_an_int8_sampler_leaves_adapters_and_shared_memory_alone():
    """A base that other models read is never written to."""
    pytest.importorskip("peft")
    adapted = lora(random_model(), r=2)
    base = adapted.get_base_model().model.layers[0].mlp.up_proj.base_layer.weight
    memory, before = base.data, base.detach().clone()
    a = next(p for n, p in adapted.named_parameters() if "lora_A" in n)
    whole = a.detach().clone()
    with in_int8(adapted):
        assert torch.equal(a, whole) and not torch.equal(base, before)
        assert torch.equal(memory, before)  # where others would read


def test_a_sampler_that_fails_gives_the_weights_back(monkeypatch):
    run = prepared(rollout_dtype="int8")
    before = [p.detach().clone() for p in run.model.parameters()]
    monkeypatch.setattr(collecting, "sample", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        collect(run, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters()))


def test_a_row_of_zeros_stays_one_in_int8():
    model = random_model()
    layer = model.model.layers[0].mlp.up_proj
    with torch.no_grad():
        layer.weight[0] = 0.0
    with in_int8(model):
        assert layer.weight[0].eq(0).all() and layer.weight.isfinite().all()


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


# Rewards and advantages


def test_advantages_compare_the_responses_to_one_prompt():
    run = prepared(reward=fixed_noise)
    batch, metrics = collect(run, 0)
    scores = torch.tensor(fixed_noise(batch.rollout.texts(TOKENIZER)))
    expected = group_relative(scores, torch.arange(4).repeat_interleave(4))
    assert torch.allclose(batch.advantages, expected[:, None].expand(-1, 24), atol=1e-6)
    assert metrics["reward"] == pytest.approx(scores.mean().item())


def test_the_critic_gives_every_token_an_advantage():
    run = prepared("ppo", reward=fixed_noise, gamma=0.9, lam=0.8, micro_batch_size=3)
    with torch.no_grad():
        run.critic.score.weight.normal_(generator=torch.Generator().manual_seed(0))
    batch, _ = collect(run, 0)
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


def test_a_method_with_a_critic_has_its_own_advantages():
    """Called with token rewards, values, mask, γ and λ; only then whitened."""
    seen = []

    def reward_to_go(rewards, old_values, mask, gamma, lam):
        seen.append((rewards, old_values, mask, gamma, lam))
        back = rewards.flip(-1).cumsum(-1).flip(-1)
        return (back - old_values) * mask, back * mask

    mine = replace(ALGORITHMS["ppo"], name="mine", advantages=reward_to_go)
    run = prepared(mine, reward=fixed_noise, gamma=0.9, lam=0.8)
    disturb(run.critic)
    batch, _ = collect(run, 0)
    ((rewards, old_values, mask, gamma, lam),) = seen
    scores = torch.tensor(fixed_noise(batch.rollout.texts(TOKENIZER)))
    assert torch.equal(rewards.sum(-1), scores)
    assert torch.equal(old_values, batch.old_values) and old_values.abs().max() > 0
    assert torch.equal(mask, batch.rollout.mask) and (gamma, lam) == (0.9, 0.8)
    expected = whiten((scores[:, None] - old_values) * mask, mask)
    assert torch.allclose(batch.advantages, expected, atol=1e-6)
    assert torch.allclose(batch.targets, scores[:, None] * mask)


def test_a_reward_that_is_a_method_is_asked_once():
    class World(Arithmetic):
        asked = 0

        def reward(self, prompts, completions, **columns):
            World.asked += 1
            return [float(len(c) % 2) for c in completions]

    collect(prepared(task=World()), 0)
    assert World.asked == 1


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


def test_a_broken_reward_is_reported_with_its_cause():
    def broken(completions, **_):
        return completions[0].nothing

    with pytest.raises(ValueError, match="broken raised AttributeError") as caught:
        small_run(reward=broken)
    assert isinstance(caught.value.__cause__, AttributeError)


# KL in the reward


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_kl_in_the_reward_takes_beta_times_the_log_ratio_off(algorithm):
    run = prepared(algorithm, beta=0.3, kl_in="reward")
    run.reference.load_state_dict(random_model().state_dict())
    batch, _ = collect(run, 0)
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
    loss = whole_loss(run, batch)
    run.config = replace(run.config, beta=0.0)
    assert whole_loss(run, batch) == loss  # nothing in the loss


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_kl_in_the_loss_is_not_paid_in_the_reward_as_well(algorithm):
    settings = {"reward": fixed_noise, "kl_in": "loss"}
    free, paid = (prepared(algorithm, beta=beta, **settings) for beta in (0.0, 3.0))
    paid.reference.load_state_dict(random_model().state_dict())
    without, batch = (collect(run, 0)[0] for run in (free, paid))
    assert torch.equal(batch.advantages, without.advantages)
    assert (batch.ref_logp - batch.old_logp).abs().max() > 1
    loss = whole_loss(paid, batch)
    paid.config = replace(paid.config, beta=0.0)
    assert (loss - whole_loss(paid, batch)).item() > 1


# Dynamic sampling


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
    assert terms_of(collect(plain, 0)[0]) != [3, 3, 3, 3]
    batch, metrics = collect(run, 0)
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
    first = collecting._draw(run, 0)
    again = collecting._draw(run, 0, again=1)
    assert first.rollout.ids.tolist() != again.rollout.ids.tolist()
    joined, rows, rounds = collecting._refill(run, 0, first)
    assert joined.texts[:16] == first.texts
    assert joined.texts[16:32] == again.texts
    assert 2 < rounds <= 9
    assert rows.tolist() == sorted(rows.tolist())


def one_group(completions, **_):
    """Only the responses to the first prompt differ."""
    return [float(i % 4) if i < 4 else 1.0 for i, _ in enumerate(completions)]


def test_a_batch_that_can_not_be_filled_is_trained_on_as_it_is():
    run = prepared(dynamic_sampling=True, reward=one_group, max_sampling_rounds=2)
    batch, metrics = collect(run, 0)
    assert metrics["sampling/rounds"] == 2
    assert batch.rollout.group.tolist() == [0] * 4 + [4] * 4  # one group per round
    assert update(run, batch, 0)["grad_norm"] > 0


def test_the_first_groups_that_differ_are_the_ones_trained_on():
    """Two groups of three differ in each round; three are wanted, so the last waits."""

    def two_groups(completions, **_):
        return [float(i % 4) if 4 <= i < 12 else 1.0 for i, _ in enumerate(completions)]

    size = {"prompts_per_rollout": 3, "minibatches": 1, "epochs": 2}
    run = prepared(dynamic_sampling=True, reward=two_groups, **size)
    drawn = [collecting._draw(run, 0, again=n) for n in range(2)]
    batch, metrics = collect(run, 0)
    assert metrics["sampling/rounds"] == 2
    assert batch.rollout.group.unique().tolist() == [1, 2, 4]
    texts = [*drawn[0].texts[4:12], *drawn[1].texts[4:8]]
    assert batch.rollout.texts(TOKENIZER) == texts


def test_rounds_are_joined_with_what_is_paid_apart_from_what_is_right():
    settings = {"dynamic_sampling": True, "max_sampling_rounds": 9}
    run = prepared(reward=right_for_some, **settings)
    first = collecting._draw(run, 0)
    joined, _, rounds = collecting._refill(run, 0, first)
    again = [collecting._draw(run, 0, again=n) for n in range(1, int(rounds))]
    for name in ("scores", "correct"):
        parts = [getattr(part, name) for part in (first, *again)]
        assert torch.equal(getattr(joined, name), torch.cat(parts))
    assert not torch.equal(joined.scores, joined.correct)


def test_a_full_first_round_is_the_last_one():
    run = prepared(dynamic_sampling=True, reward=fixed_noise)
    batch, metrics = collect(run, 0)
    assert metrics["sampling/rounds"] == 1
    assert len(batch.rollout) == metrics["num_samples"] == 16


def test_every_refill_has_dice_of_its_own():
    """On a task of one problem only the responses can tell the rounds apart."""

    seeds = []

    class OneProblem(Arithmetic):
        def sample(self, n, seed):
            seeds.append(seed)
            return [{"prompt": "3+9=", "answer": 12}] * n

    run = prepared(
        task=OneProblem(),
        reward=always_one,
        dynamic_sampling=True,
        max_sampling_rounds=4,
    )
    seeds.clear()
    first = collecting._draw(run, 0)
    with pytest.raises(DynamicSamplingError, match="4 rounds"):
        collecting._refill(run, 0, first)
    assert len(set(seeds)) == len(seeds) == 4  # other problems in every round
    rounds = [collecting._draw(run, 0, again=n).texts for n in range(4)]
    assert rounds[0] == first.texts
    assert len({tuple(texts) for texts in rounds}) == 4


def test_a_task_without_a_mixed_group_is_an_error_that_says_so():
    with pytest.raises(DynamicSamplingError, match=r"2 rounds of 4 prompts"):
        small_run("dapo", reward=always_one, max_sampling_rounds=2)


def test_dynamic_sampling_asks_the_reward_before_the_punishment():
    """Lengths differ everywhere: punished rewards would let every group through."""
    run = prepared(
        "dapo", reward=right_for_some, overlong_share=1.0, max_sampling_rounds=30
    )
    assert set(terms_of(collect(run, 0)[0])) == {3}


# Overlong responses


def test_the_punishment_is_added_before_the_advantages():
    """L_max 24, L_cache 12: with equal scores only the length is left to compare."""
    settings = {"reward": always_one, "overlong_share": 0.5}
    batch, metrics = collect(prepared(**settings), 0)
    length = batch.rollout.length
    shaped = 1 + ((12 - length) / 12).clamp(-1, 0)
    expected = group_relative(shaped, batch.rollout.group)
    assert (expected != 0).any()
    assert torch.allclose(batch.advantages[:, 0], expected)
    assert metrics["reward"] == 1  # as the verifier paid


def test_the_ramp_of_the_punishment_may_be_as_long_as_the_limit():
    """L_cache = L_max: a token more always costs."""
    run = prepared(reward=always_one, overlong_share=1.0)
    batch, _ = collect(run, 0)
    shaped = 1 - batch.rollout.length / 24
    expected = group_relative(shaped, batch.rollout.group)
    assert torch.allclose(batch.advantages[:, 0], expected, atol=1e-5)


def test_overlong_filtering_takes_the_loss_of_truncated_responses_away():
    run = prepared(overlong_filtering=True, reward=fixed_noise)
    batch, _ = collect(run, 0)
    truncated = batch.rollout.truncated
    assert 0 < truncated.sum() < len(truncated)
    assert (batch.mask[truncated] == 0).all()
    assert torch.equal(batch.mask[~truncated], batch.rollout.mask[~truncated])
    assert batch.rollout.mask[truncated].sum() > 0  # still there to be described
    whole_loss(run, batch).backward()
    whole = [p.grad.clone() for p in run.model.parameters()]
    run.model.zero_grad()
    batch, tokens = updating._weighed(run, batch, torch.arange(16))
    run.config = replace(run.config, micro_batch_size=16)
    (part,) = updating._micro_batches(run, batch, (~truncated).nonzero()[:, 0])
    updating._loss(run, part, tokens)[0].backward()
    for one, other in zip(whole, run.model.parameters(), strict=True):
        assert torch.allclose(one, other.grad, atol=1e-6)


def test_a_rollout_of_nothing_but_truncated_responses_has_no_gradient():
    run = prepared(overlong_filtering=True, max_new_tokens=1, reward=fixed_noise)
    batch, metrics = collect(run, 0)
    assert metrics["completions/clipped_ratio"] == 1
    measured = update(run, batch, 0)
    assert measured["grad_norm"] == measured["loss"] == 0


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


def hand_made_draw(scores, correct) -> collecting.Drawn:
    return collecting.Drawn(
        hand_made_rollout(), TEXTS, torch.tensor(scores), torch.tensor(correct)
    )


def test_a_rollout_in_numbers():
    run = prepared(prompts_per_rollout=2, group_size=2)
    found = collecting._describe(
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
    found = collecting._describe(run, hand_made_draw([1.0] * 4, [1.0] * 4))
    assert found["length/wrong"] is None
    assert found["length/correct"] == 11 / 4
    assert found["frac_reward_zero_std"] == 1
    assert found["reward_std"] == 0


def test_half_a_reward_is_not_a_right_answer():
    run = prepared(prompts_per_rollout=2, group_size=2)
    found = collecting._describe(run, hand_made_draw([0.0] * 4, [0.5, 0.51, 0.5, 0.0]))
    assert found["length/correct"] == 4.0
    assert found["length/wrong"] == (2 + 1 + 4) / 3


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


def test_habits_and_their_accuracy_add_up_to_the_reward():
    for row in small_run(rollouts=2, **COURSE).rows:
        total = sum(
            row[f"habit/{habit}"] * (row[f"habit_accuracy/{habit}"] or 0)
            for habit in Arithmetic.habits
        )
        assert total == pytest.approx(row["reward"])


def test_a_trusted_sampler_stands_for_the_old_policy():
    """Its own log-probs, off by what it rounds; otherwise one pass replaces them."""
    batches = {}
    for trusted in (False, True):
        run = prepared(rollout_dtype="bfloat16", trust_sampler=trusted)
        batches[trusted], metrics = collect(run, 0)
        assert ("sampling/kl" in metrics) is not trusted
    told, passed = batches[True], batches[False]
    assert torch.equal(told.rollout.ids, passed.rollout.ids)
    assert torch.equal(told.old_logp, told.rollout.logp)
    assert not torch.equal(passed.old_logp, told.old_logp)


def test_a_trusted_sampler_leaves_no_pass_whose_experts_could_be_replayed():
    with pytest.raises(ValueError, match="replay='R2' replays the experts of that"):
        TrainConfig(trust_sampler=True, replay="R2")
    TrainConfig(trust_sampler=True, replay="R3")
