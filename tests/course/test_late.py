"""Chapters 15 and 16: what numbers count."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

import refimpl as rl
from course.late_sampler import figures as pictures
from course.late_sampler import late
from course.probability import fork
from refimpl import ALGORITHMS
from refimpl.rollout import Batch
from tests.worlds import TOKENIZER, random_model


def test_of_tokens_that_are_all_outside_the_share_is_one():
    """Padding is no token: the answers have several lengths."""
    model = random_model()
    given = {"group_size": 8, "seed": 0, "max_new_tokens": 24}
    rollout = rl.sample(model, TOKENIZER, ["1+2=", "1+2+3="], **given)
    assert rollout.mask.mean() < 1
    far = Batch(rollout, rollout.mask, rollout.logp - 1, torch.ones_like(rollout.mask))
    logp = rl.log_probs(model, rollout)[0]
    run = SimpleNamespace(model=model, read=lambda *_: SimpleNamespace(logp=logp))
    assert late.outside(far, run) == (1.0, 0.0, 0.0)


def test_a_control_leaves_out_bad_answers_alone_and_as_many_as_it_should():
    rewards = torch.tensor([1.0, 0.0] * 4000)
    scored = rl.Scored(rewards, torch.arange(8000) // 8)
    plain = ALGORITHMS["grpo"].advantages(scored)
    made = late.dropping(ALGORITHMS["grpo"], 3).advantages(scored)
    assert torch.equal(made[::2], plain[::2])
    assert ((made[1::2] == 0) | (made[1::2] == plain[1::2])).all()
    assert (made[1::2] == 0).float().mean().item() == pytest.approx(0.77, abs=0.02)
    again = late.dropping(ALGORITHMS["grpo"], 3).advantages(scored)
    assert torch.equal(made, again)


def test_the_clip_against_the_sampler_keeps_what_has_a_gradient():
    """π_old stands for μ there: GRPO's own loss, whose clip has one side per sign."""
    z = torch.linspace(-1, 1, 21).repeat(2, 1)
    mask, advantages = torch.ones_like(z), torch.tensor([1.0, -1.0])
    kept = pictures.kept(z, mask, advantages, 3.0, 0.01)[1]
    old = torch.full_like(z, -3.0)
    logp = (old + z).requires_grad_()
    ALGORITHMS["grpo"].policy_loss(logp, old, advantages, mask).loss.backward()
    assert torch.equal(kept, logp.grad != 0)


def test_the_fork_is_read_at_the_first_character():
    """Prompts of two lengths; each is read by itself, without padding."""
    model, prompts = random_model(), ["1+2=", "1+2+3="]
    digits = torch.tensor(TOKENIZER.convert_tokens_to_ids([*"0123456789"]))
    given = {"group_size": 3, "seed": 0, "max_new_tokens": 4}
    rollout = rl.sample(model, TOKENIZER, prompts, **given)
    each = []
    for prompt in prompts:
        ids = torch.tensor([TOKENIZER(prompt)["input_ids"]])
        with torch.no_grad():
            each.append(model(ids).logits[0, -1].softmax(-1)[digits].sum())
    found = fork.first_is(model, rollout, digits)
    assert_close(found, torch.stack(each).mean().item(), rtol=0, atol=1e-5)
