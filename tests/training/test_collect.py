"""From problems to a batch: sampled, scored, compared, and described."""

import warnings
from unittest.mock import Mock

import pytest
import torch

from refimpl import collect, updates
from refimpl.advantages import Scored, group_relative
from refimpl.hooks import warn_if_never_right
from refimpl.logprobs import log_probs
from refimpl.responses import (
    DynamicSampling,
    DynamicSamplingError,
    Responses,
    describe,
    once,
)
from refimpl.rewards import OFFERED
from refimpl.tasks import Arithmetic, TaskWarning
from tests.worlds import (
    ROUNDING,
    always_one,
    fixed_noise,
    measured_loss,
    prepared,
    prompts_of,
    rolled_out,
    rollout_of,
)


def test_answers_and_noise_have_a_seed_each():
    """Noise with the answers' seed would be made of the numbers that draw them."""
    run = prepared()
    run.sampler.respond = Mock(wraps=run.sampler.respond)
    for step in range(2):
        collect(run, step)
    calls = run.sampler.respond.call_args_list
    assert len({seed for call in calls for seed in call.args[3:5]}) == 4


@pytest.mark.parametrize("rollout_dtype", [None, "bfloat16"])
@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_every_log_prob_is_taken_at_the_temperature(temperature, rollout_dtype):
    """The sampler's, or those scored of π_old where that is another; the reference's,
    and the first update's."""
    settings = {"temperature": temperature, "rollout_dtype": rollout_dtype}
    run, batch, metrics = rolled_out(beta=0.1, reward=fixed_noise, **settings)
    near = 2 * ROUNDING / min(1.0, temperature)
    right, _ = log_probs(run.model, batch.rollout, temperature)
    assert (batch.old_logp - right).abs().max() < near
    assert (batch.ref_logp - right).abs().max() < near and abs(metrics["kl"]) < near
    assert (log_probs(run.model, batch.rollout)[0] - right).abs().max() > 0.1
    assert measured_loss(run, batch)[1]["ratio/max_deviation"] < near
    if rollout_dtype:
        assert metrics["sampling/sampling_logp_difference/mean"] < 0.1


def test_the_reward_receives_the_columns_of_the_task_once():
    """Also where it is a method, which is another object at every access."""
    seen = []

    class World(Arithmetic):
        def reward(self, prompts, completions, **columns):
            seen.append((prompts, completions, columns))
            return [float(len(c) % 2) for c in completions]

    collect(prepared(task=World()), 0)
    ((prompts, completions, columns),) = seen
    assert columns.keys() == {"answer", "terms", *OFFERED} and len(completions) == 16
    assert prompts == [prompt for prompt in prompts[::4] for _ in range(4)]
    digits = [[int(d) for d in prompt[:-1].split("+")] for prompt in prompts]
    assert columns["answer"] == [sum(each) for each in digits]
    assert columns["terms"] == [len(each) for each in digits]


@pytest.mark.parametrize("reward", [None, fixed_noise, always_one])
def test_a_first_rollout_with_nothing_to_learn_is_warned_of(reward):
    """Not where answers are wrong but rewards differ, nor where some are right. Only
    the run's own reward logs a metric."""

    class Hopeless(Arithmetic):
        @staticmethod
        def reward(completions, log_metric, **_):
            log_metric("mine", 3.0)
            return [0.0] * len(completions)

    run = prepared(task=None if reward is always_one else Hopeless(), reward=reward)
    with warnings.catch_warnings(record=True) as found:
        for step in range(2):
            _, metrics = collect(run, step)
            warn_if_never_right(run, step)
    assert [w.category for w in found] == ([TaskWarning] if reward is None else [])
    assert metrics.get("mine") == (3.0 if reward is None else None)


def drawn(*scores, correct=None, texts=None) -> Responses:
    """Groups of two: prompts of 3, 3, 4, 4, 3 … tokens, responses of 2, 4, 1, 4, 2 …"""
    scores, row = torch.tensor(scores), torch.arange(len(scores))
    logged = {"first": [1.0]} if correct is None else {"later": [1.0, 2.0, 6.0]}
    correct = scores if correct is None else torch.tensor(correct)
    mask = (torch.arange(4) < torch.tensor([2, 4, 1, 4])[row % 4, None]).float()
    known = {"entropy": 2 * mask, "truncated": row % 4 == 1, "group": row // 2}
    known["prompt_length"] = torch.tensor([3, 3, 4, 4])[row % 4]
    rollout = rollout_of(mask, **known)
    texts = texts or [f"{i}" for i in row]
    prompts, parts = ["3+9="] * len(row), {"half": scores / 2}
    return Responses(rollout, prompts, texts, scores, scores, correct, 2, parts, logged)


@pytest.mark.parametrize(
    ("rounds", "wanted", "most", "taken", "rows"),
    [
        # the first round is enough; of three that differ the first two are taken
        ([[0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]], 2, 6, 1, [0, 1, 4, 5]),
        # equal rewards above 0 teach nothing either
        ([[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.5, 0.5]], 2, 6, 2, [2, 3, 4, 5]),
        # the last of two may wait
        ([[0.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0]], 2, 6, 2, [0, 1, 4, 5]),
        # what was found in so many rounds is trained on
        ([[1.0, 1.0], [0.0, 1.0], [0.5, 0.5]], 2, 3, 3, [2, 3]),
    ],
)
def test_groups_that_differ_are_drawn_until_enough(rounds, wanted, most, taken, rows):
    asked = []

    def draw(refill: int = 0) -> Responses:
        if refill == 0:
            return drawn(*rounds[0])
        asked.append(refill)
        return drawn(*rounds[refill], correct=[9.0 + refill] * len(rounds[refill]))

    found = DynamicSampling(wanted, most)(draw)
    assert (found.rounds, asked) == (taken, list(range(1, taken)))
    assert found.rows.tolist() == rows
    scores = torch.tensor([score for scores in rounds[:taken] for score in scores])
    assert torch.equal(found.rewards, scores)
    assert torch.equal(found.components["half"], scores / 2)
    groups = torch.arange(len(scores) // 2).repeat_interleave(2)
    assert torch.equal(found.rollout.group, groups)
    assert len(found.texts) == len(scores)
    assert found.logged.get("later", []) == [1.0, 2.0, 6.0] * len(asked)
    later = found.correct[len(rounds[0]) :].tolist()
    assert later == [9.0 + n for n in asked for _ in rounds[n]]


def right_for_some(prompts, completions, **_):
    """Groups differ for prompts of three terms, are equal for the rest."""
    noise = fixed_noise(completions)
    pairs = zip(prompts, noise, strict=True)
    return [x if prompt.count("+") == 2 else 1.0 for prompt, x in pairs]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_batch_is_filled_by_what_is_paid_before_a_punishment(share):
    """Lengths differ everywhere: punished rewards would let every group through."""
    settings = {"dynamic_sampling": True, "max_sampling_rounds": 50}
    settings |= {"reward": right_for_some, "overlong_share": share}
    _, batch, metrics = rolled_out(**settings)
    terms = [prompt.count("+") + 1 for prompt in prompts_of(batch.rollout)]
    assert terms == [3] * 16
    assert sorted(batch.rollout.group.bincount().tolist())[-4:] == [4] * 4
    assert metrics["sampling/rounds"] > 1
    # every sample was paid for, and the reward is that of all
    assert metrics["num_samples"] == 16 * metrics["sampling/rounds"]
    assert metrics["reward"] > 0.6  # of those kept it would be 0.5
    assert 0.5 < metrics["frac_reward_zero_std"] < 1


def test_every_refill_has_seeds_of_its_own():
    """On a task of one problem only the responses can tell the rounds apart."""
    seeds, texts = [], []

    class OneProblem(Arithmetic):
        def sample(self, n, seed):
            seeds.append(seed)
            return [{"prompt": "3+9=", "answer": 12}] * n

    def spy(*arguments):
        texts.append(tuple((drawn := score(*arguments)).texts))
        return drawn

    settings = {"dynamic_sampling": True, "max_sampling_rounds": 4}
    run = prepared(task=OneProblem(), reward=always_one, **settings)
    seeds.clear()
    score, run.score = run.score, spy
    said = r"4 rounds of 4 prompts gave no group of 4 .* reward 1\.00"
    with pytest.raises(DynamicSamplingError, match=said) as caught:
        collect(run, 0)
    assert len(caught.value.drawn.texts) == 4 * 16
    assert len(set(seeds)) == len(seeds) == 4  # other problems in every round
    assert len(set(texts)) == len(texts) == 4
    run.fill_batch = once
    collect(run, 0)
    assert texts[-1] == texts[0]  # as without dynamic sampling


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "batch_centred"])
def test_one_response_a_prompt_is_compared_with_all_others(name):
    alone = {"group_size": 1, "advantage": name}
    _, _, metrics = rolled_out(reward=fixed_noise, **alone)
    assert metrics["frac_reward_zero_std"] == 0 < metrics["reward_std"]


def test_what_is_too_long_is_punished_and_what_was_cut_off_has_no_loss():
    """Punished before the rewards of a group are compared; the history shows them as
    they were."""
    settings = {"overlong_share": 0.5, "overlong_filtering": True, "max_new_tokens": 9}
    run, batch, metrics = rolled_out(reward=fixed_noise, **settings)
    rollout = batch.rollout
    paid = torch.tensor(fixed_noise(rollout.texts(run.tokenizer)))
    assert metrics["reward"] == pytest.approx(paid.mean().item())
    punished = paid + ((4.5 - rollout.length) / 4.5).clamp(-1, 0)
    wanted = group_relative(Scored(punished, rollout.group))
    assert torch.allclose(batch.advantages, wanted[:, None].expand_as(rollout.mask))
    kept = rollout.mask * ~rollout.truncated[:, None]
    assert torch.equal(batch.mask, kept) and 0 < kept.sum() < rollout.mask.sum()


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_rollout_of_nothing_but_truncated_responses_has_no_gradient(algorithm):
    settings = {"overlong_filtering": True, "max_new_tokens": 1, "reward": fixed_noise}
    run, batch, metrics = rolled_out(algorithm, **settings)
    assert metrics["completions/clipped_ratio"] == 1
    measured = updates(run, batch, 0)
    assert measured["grad_norm"] == measured["loss"] == 0


TEXTS = ["3+9=12;#12", "#13", "#5", "#7"]


def test_a_rollout_in_numbers():
    world = Arithmetic()
    one = drawn(1.0, 0.0, 0.5, 0.5, correct=[1.0, 0.0, 1.0, 1.0], texts=TEXTS)
    one.components["half"][1] = torch.nan  # it does not apply to this answer
    assert describe(one, world) == {
        "sampling/rounds": 1.0,
        "reward": 0.5,
        "reward_std": pytest.approx(0.5**0.5 / 2),
        "frac_reward_zero_std": 0.5,
        "entropy": 2.0,
        "num_tokens": 11 + 14,
        "num_samples": 4.0,
        "completions/mean_length": 11 / 4,
        "completions/clipped_ratio": 0.25,
        "length/correct": pytest.approx(7 / 3),
        "length/wrong": 4.0,
        "rewards/half/mean": pytest.approx(1 / 3),
        "later": 3.0,
        "habit/careful": 0.25,
        "habit_accuracy/careful": 1.0,
        "habit/guess": 0.75,
        "habit_accuracy/guess": pytest.approx(2 / 3),
        "habit/ramble": 0.0,
        "habit_accuracy/ramble": None,
    }


def test_half_right_is_not_right_and_of_none_there_is_no_length():
    for correct, right, wrong in (
        ([1.0] * 4, 11 / 4, None),
        ([0.5, 0.51, 0.5, 0.0], 4.0, 7 / 3),
    ):
        found = describe(drawn(*[1.0] * 4, correct=correct), Arithmetic())
        assert (found["length/correct"], found["length/wrong"]) == (right, wrong)
