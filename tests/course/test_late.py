"""Chapters 15 and 16: what stored runs were asked for, and what numbers count."""

from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

import refimpl as rl
from course.kit import misreading
from course.late_sampler import figures as pictures
from course.late_sampler import late
from course.probability import fork
from experiments import store
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


def test_all_that_was_planned_is_stored_and_nothing_else():
    """By name, of one start: settings, weights and what the methods answer are those of
    today. Of the others there are as many."""
    each = 2 * len(late.RULES) + 1
    named = {late.RUNS.key(job) for job in [*late.RUNS.jobs()][-each:]}
    stored = store.done(late.RUNS.path)
    assert named < stored and len(named) == each
    assert len(stored) == len(late.STARTS) * each


def test_the_clip_against_the_sampler_keeps_what_has_a_gradient():
    """π_old stands for μ there: GRPO's own loss, whose clip has one side per sign."""
    z = torch.linspace(-1, 1, 21).repeat(2, 1)
    mask, advantages = torch.ones_like(z), torch.tensor([1.0, -1.0])
    kept = pictures.kept(z, mask, advantages, 3.0, 0.01)[1]
    old = torch.full_like(z, -3.0)
    logp = (old + z).requires_grad_()
    ALGORITHMS["grpo"].policy_loss(logp, old, advantages, mask).loss.backward()
    assert torch.equal(kept, logp.grad != 0)


FOUR = [[0.25, 0.25, 0.1, 0.4], [0.45, 0.4, 0.1, 0.05], [0.0, 0.0, 0.0, 1.0]]
"""Chapter 15's: π, μ and rewards. μ · min(π/μ, 2) is 0.25, 0.25, 0.1 and 0.1."""


def drawn(logits, mu, advantages, cap, centring):
    """The gradient of what an engine adds up for a drawn token, in expectation over μ:
    Â (w log π − Σ_a sg[μ w] log π), the sum being score centering's. SkyRL#2244,
    prime-rl at 349283d, the paper's appendix with all of the vocabulary as its head."""
    w, logp = (logits.softmax(-1) / mu).clamp(max=cap), logits.log_softmax(-1)
    w, found = w.detach(), 0.0
    for token, chance in enumerate(mu.tolist()):
        score = w[token] * logp[token] - centring * (mu * w * logp).sum()
        found = found + chance * advantages[token] * score
    return torch.autograd.grad(found, logits)[0]


@pytest.mark.parametrize(
    ("baseline", "without"), [(0.0, 0.06), (0.05, 0.069), (0.4, 0.132), (1.0, 0.24)]
)
def test_score_centering_has_one_gradient_for_every_baseline(baseline, without):
    """The right token's, with b = 0.05: 0.1 · 0.95 − 0.4 (0.095 − 0.6 · 0.05) = 0.069.
    With the exact weight, no cap, the sum is 0 and changes nothing."""
    pi, mu, rewards = torch.tensor(FOUR, dtype=torch.float64)
    logits, entry = pi.log().requires_grad_(), misreading("late_any_baseline_will_do")
    for centring, typed, wanted in ((0, entry.wrong, without), (1, entry.right, 0.069)):
        found = typed(logits.detach(), mu, rewards, baseline, 2.0)
        engine = drawn(logits, mu, rewards - baseline, 2.0, centring)
        assert_close(found, engine, rtol=0, atol=1e-12)
        assert found[3].item() == pytest.approx(wanted, abs=1e-12)
    exact = [f(logits, mu, rewards, baseline, 99.0) for f in (entry.wrong, entry.right)]
    assert_close(*exact, rtol=0, atol=1e-12)


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
