"""What goes wrong in practice: each row of chapter 11's last table shows itself in a
rollout or a run of four, and the numbers of the paragraphs that explain it hold."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import pad

import refimpl as rl
from refimpl.sampling import Policy
from tests.worlds import (
    PAD,
    ROUNDING,
    TOKENIZER,
    rolled_out,
    small_run,
    warm_model,
)

WORLD = rl.tasks.Arithmetic()
ROWS = WORLD.held_out(64)
PROMPTS = [row["prompt"] for row in ROWS]


@pytest.fixture(scope="module")
def rollout():
    return rl.sample(warm_model(), TOKENIZER, PROMPTS, seed=1)


@torch.no_grad()
def read(rollout, model=None):
    return rl.log_probs(model or warm_model(), rollout)[0]


def gap(rollout, logp=None):
    """What the sampler said of each token minus what the trainer reads, nats."""
    other = read(rollout) if logp is None else logp
    return (rollout.logp - other)[rollout.mask.bool()]


def test_another_precision_differs_everywhere_and_a_little():
    low = Policy(warm_model(), "bfloat16").respond(TOKENIZER, PROMPTS, 1, 0)
    moved = gap(low)
    assert (moved.abs() > 1e-6).float().mean() > 0.5 and moved.abs().mean() < 0.02
    assert moved.min() < -1e-3 and moved.max() > 1e-3


def test_another_temperature_differs_much_and_top_p_to_one_side():
    cool = gap(rl.sample(warm_model(), TOKENIZER, PROMPTS, temperature=0.7))
    assert cool.abs().mean() > 0.015 and cool.max() > 0.1 and cool.min() < -0.1
    cut = gap(rl.sample(warm_model(), TOKENIZER, PROMPTS, top_p=0.9))
    assert cut.min() > -ROUNDING and 0.05 < cut.max() < -math.log(0.9) + ROUNDING


def test_other_tokens_differ_from_there_on(rollout):
    """A text that is tokenised anew: up to the first new token nothing has changed."""
    long = rollout.rows((rollout.length > 12).nonzero()[:4, 0])
    ids, where = long.ids.clone(), long.positions[:, 6]
    ids[torch.arange(4), where] = (ids[torch.arange(4), where] + 1) % 10 + 3
    apart = ((read(replace(long, ids=ids)) - long.logp) * long.mask).abs()
    assert apart[:, :6].max() < ROUNDING and (apart[:, 6:].amax(1) > 0.1).all()


@torch.no_grad()
def padded(rollout, pads, *, attended):
    """The trainer's log-probs with so many pads in front of each row."""
    ids = pad(rollout.ids, (pads, 0), value=PAD)
    seen = None if attended else (torch.arange(ids.shape[1]) >= pads).expand_as(ids)
    where = (rollout.positions - 1 + pads)[..., None]
    logits = warm_model()(ids, attention_mask=seen, use_cache=False).logits
    logp = logits.log_softmax(-1).gather(1, where.expand(-1, -1, logits.shape[-1]))
    return logp.gather(-1, rollout.tokens[..., None])[..., 0] * rollout.mask


def test_an_attended_pad_differs_by_the_pads_and_a_shift_of_positions_does_not(rollout):
    """Rotary positions enter as differences alone."""
    apart = [gap(rollout, padded(rollout, n, attended=True)).abs() for n in (1, 4, 16)]
    means = [x.mean().item() for x in apart]
    assert means == pytest.approx([0.07, 0.3, 0.86], rel=0.3)
    assert apart[1].max() == pytest.approx(13, rel=0.3)
    for n in (1, 4, 16):
        assert gap(rollout, padded(rollout, n, attended=False)).abs().max() < ROUNDING


def test_old_weights_differ_more_with_every_update():
    kl = small_run(rollouts=4, sampler_delay=4, learning_rate=1e-3)["sampling/kl"]
    assert kl[0] < 1e-6 < kl[1] < kl[3]


def test_a_reference_that_is_lost_on_resume_brings_the_kl_back_to_0():
    moved = small_run(learning_rate=1e-3, rollouts=4).model
    run, batch, _ = rolled_out(model=moved, beta=1e-9)  # begun anew from its weights
    mask = batch.mask.bool()

    def kl(reference):
        return rl.kl.k3(batch.old_logp, read(batch.rollout, reference))[mask].mean()

    assert kl(run.reference).abs() < 1e-6 and kl(warm_model()) > 1e-3
