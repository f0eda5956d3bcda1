"""Misreadings of pretrained models, held against the package."""

from math import comb

import pytest
import torch

from course.misreadings import MISREADINGS
from refimpl.collect import collect
from refimpl.config import TrainConfig
from refimpl.evaluation import pass_at
from refimpl.models import build
from refimpl.rollout import Truncation, sample, truncated
from refimpl.scoring import log_probs
from refimpl.tasks.arithmetic import make_tokenizer
from refimpl.trainer import prepare

LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).double().log()


def both(name, *arguments):
    """What the wrong one and the right one say."""
    pair = MISREADINGS[name]
    return pair.wrong(*arguments), pair.right(*arguments)


def test_real_pad_is_eos():
    """7 5 EOS and padding: the first EOS is a decision, the others are none."""
    wrong, right = both("real_pad_is_eos", torch.tensor([7, 5, 1, 1, 1]), 1)
    assert wrong.tolist() == [1, 1, 0, 0, 0]
    assert right.tolist() == [1, 1, 1, 0, 0]


def test_an_answer_that_was_cut_off_has_no_end():
    wrong, right = both("real_pad_is_eos", torch.tensor([7, 5, 3]), 1)
    assert wrong.tolist() == right.tolist() == [1, 1, 1]


def test_the_sampler_keeps_the_eos_that_ends_an_answer():
    """With EOS for padding, on a model that ends at random places."""
    tokenizer = make_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    model, eos = build("tiny", tokenizer), tokenizer.eos_token_id
    rollout = sample(model, tokenizer, ["1+2="], group_size=32, max_new_tokens=24)
    assert 0 < rollout.truncated.sum() < 32
    for tokens, mask in zip(rollout.tokens, rollout.mask):
        wrong, right = both("real_pad_is_eos", tokens, eos)
        assert mask.tolist() == right.tolist()
        assert right.sum() - wrong.sum() == (eos in tokens)


@pytest.mark.parametrize("token", [0, 1, 2])
def test_real_sampler_is_old_policy(token):
    """The first three of 0.5, 0.3, 0.15, 0.05 hold 0.95."""
    wrong, right = both("real_sampler_is_old_policy", LOGITS, LOGITS, token, 0.9)
    assert wrong.item() == pytest.approx(0.95)
    assert right.item() == 1


def test_after_an_update_they_still_differ_by_the_mass():
    logits = LOGITS + torch.tensor([0.3, -0.1, 0.0, 0.2])
    wrong, right = both("real_sampler_is_old_policy", logits, LOGITS, 1, 0.9)
    assert wrong / right == pytest.approx(0.95)
    assert right == pytest.approx((logits.softmax(-1)[1] / 0.3).item())


@pytest.mark.parametrize("top_p", [0.3, 0.5, 0.9, 0.95, 1.0])
def test_the_nucleus_is_the_package_s(top_p):
    logits = torch.tensor([0.1, 2.0, -1.0, 1.5, 0.7]).double()
    kept = truncated(logits, Truncation(top_p=top_p))
    for token in kept.isfinite().nonzero()[:, 0].tolist():
        wrong, _ = both("real_sampler_is_old_policy", logits, logits, token, top_p)
        mass = (logits.log_softmax(-1) - kept)[token].exp()
        assert wrong == pytest.approx(mass.item())


def test_the_trainer_takes_the_policy_for_pi_old():
    config = TrainConfig(top_p=0.9, prompts_per_rollout=4, max_new_tokens=16)
    run = prepare("grpo", config)
    batch, _ = collect(run, 0)
    new, _ = log_probs(run.model, batch.rollout)
    real = batch.rollout.mask.bool()
    ratio = (new - batch.old_logp).exp()[real]
    assert (ratio - 1).abs().max() < 1e-3
    wrong = (new - batch.rollout.logp).exp()[real]
    assert 0.05 < (wrong - 1).abs().max() < 0.1 + 1e-3
    assert wrong.max() < 1 + 1e-3


@pytest.mark.parametrize(
    ("n", "c", "k", "wrong", "right"),
    [(2, 1, 2, 0.75, 1.0), (4, 1, 2, 0.4375, 0.5), (8, 3, 1, 0.375, 0.375)],
)
def test_real_pass_with_replacement(n, c, k, wrong, right):
    found = both("real_pass_with_replacement", n, c, k)
    assert found == pytest.approx((wrong, right))
    answers = torch.tensor([[1.0] * c + [0.0] * (n - c)])
    assert pass_at(answers, k) == pytest.approx(right)


@pytest.mark.parametrize("p", [0.05, 0.15, 0.6])
def test_one_of_them_is_unbiased(p):
    """The mean over c ~ Binomial(8, p), for pass@4."""
    n, k = 8, 4
    mean_of = [0.0, 0.0]
    for c in range(n + 1):
        chance = comb(n, c) * p**c * (1 - p) ** (n - c)
        values = both("real_pass_with_replacement", n, c, k)
        mean_of = [m + chance * v for m, v in zip(mean_of, values)]
    truth = 1 - (1 - p) ** k
    assert mean_of[1] == pytest.approx(truth)
    assert mean_of[0] < truth - 0.01
