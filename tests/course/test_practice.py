"""What goes wrong in practice: each row of chapter 11's last table shows itself in a
rollout or a run of four, and the numbers of the paragraphs that explain it hold."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import pad

import refimpl as rl
from refimpl.pretrained.loading import load
from refimpl.sampling import Policy
from refimpl.sft import WarmStart
from tests.worlds import (
    PAD,
    ROUNDING,
    TOKENIZER,
    disturb,
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


def right(texts, rows=ROWS):
    answers = [row["answer"] for row in rows for _ in range(len(texts) // len(rows))]
    return torch.tensor(WORLD.reward(None, texts, answer=answers))


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


def test_smollm2_reads_some_of_its_own_answers_as_other_tokens():
    """7 of 256 answers of 12 tokens, where this was written."""
    try:
        model, tokenizer = load("smollm2")
    except rl.UserError:
        pytest.skip("SmolLM2 has not been fetched: python -m refimpl fetch smollm2")
    pieces = [
        tokenizer.convert_tokens_to_ids(x) for x in ("ĠAd", "dition", "ĠAddition")
    ]
    assert tokenizer(tokenizer.decode(pieces[:2])).input_ids == pieces[2:]
    talks = [
        [{"role": "user", "content": f"Calculate {a} + {b}."}]
        for a in range(1, 9)
        for b in range(4, 8)
    ]
    asked = {"tokenize": False, "add_generation_prompt": True}
    prompts = [tokenizer.apply_chat_template(talk, **asked) for talk in talks]
    said = rl.sample(model, tokenizer, prompts, group_size=8, max_new_tokens=12)
    rows = zip(said.completion_ids(), said.truncated.tolist(), strict=True)
    ids = [row if cut else row[:-1] for row, cut in rows]
    again = tokenizer(said.texts(tokenizer)).input_ids
    others = sum(a != b for a, b in zip(ids, again, strict=True))
    print(others, "of", len(ids))
    assert len(ids) == 256 and 1 <= others <= 26


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


@torch.no_grad()
def test_old_keys_and_values_differ_where_the_prompt_was_read_before_and_no_clip_sees(
    rollout,
):
    """The new weights go on from a prefix that the old ones have read."""
    one = rollout.rows(torch.tensor([int(rollout.length.argmax())]))
    new, start = copy.deepcopy(warm_model()), int(one.prompt_length)
    disturb(new, 0.01)

    def continued(reader):
        kept = reader(one.ids[:, : start - 1], use_cache=True).past_key_values
        logits = new(one.ids[:, start - 1 : -1], past_key_values=kept).logits
        tokens = one.ids[:, start:, None]
        return logits.log_softmax(-1).gather(-1, tokens)[..., 0]

    now = read(one, new)
    assert (continued(new) - now).abs().max() < ROUNDING
    assert (continued(warm_model()) - now).abs().max() > 100 * ROUNDING
    assert torch.equal(read(one, new), now)  # π_old is recomputed: r = 1 at K = 1


def test_without_its_end_token_a_right_answer_is_told_to_go_on():
    theta = torch.zeros((), requires_grad=True)  # σ(θ): the chance to stop here
    stops = torch.stack(
        [torch.sigmoid(-theta).log()] * 5 + [torch.sigmoid(theta).log()]
    )
    for mask, sign in (([1] * 5 + [0], -1), ([0] * 5 + [1], 1)):
        kept = (stops * torch.tensor(mask)).sum()
        assert torch.autograd.grad(kept, theta, retain_graph=True)[0] * sign > 0


def test_a_reference_that_is_lost_on_resume_brings_the_kl_back_to_0():
    moved = small_run(learning_rate=1e-3, rollouts=4).model
    run, batch, _ = rolled_out(model=moved, beta=1e-9)  # begun anew from its weights
    mask = batch.mask.bool()

    def kl(reference):
        return rl.kl.k3(batch.old_logp, read(batch.rollout, reference))[mask].mean()

    assert kl(run.reference).abs() < 1e-6 and kl(warm_model()) > 1e-3


def test_a_refused_form_of_right_answers_is_pushed_down_and_chance_only_scales():
    f, g = 0.05, 0.05
    paid = torch.tensor([1.0, 1, 0, 0, 0, 0, 0, 0])
    expected = paid * (1 - g) + (1 - paid) * f  # a verifier that errs by chance
    group = torch.zeros(8).long()
    true, noisy = (
        rl.advantages.leave_one_out(rl.Scored(x, group)) for x in (paid, expected)
    )
    assert torch.allclose(noisy, (1 - f - g) * true, atol=1e-6)
    refused = paid.clone()
    refused[1] = 0  # the same right answer, written in another way
    assert rl.advantages.leave_one_out(rl.Scored(refused, group))[1] < 0


@pytest.mark.parametrize(("mix", "found"), [((0.02, 0.49, 0.49), True), (None, False)])
def test_a_form_that_is_paid_by_mistake_wins_where_right_answers_are_rarer(mix, found):
    """Every answer that ends in #12: 4 % of the first ones, where 2 % are careful."""
    world = rl.tasks.Arithmetic(habit_mix=mix) if mix else WORLD
    model = rl.warm_start(WarmStart(world=world))[0]

    def lax(prompts, completions, **columns):
        exact = world.reward(prompts, completions, **columns)
        return [float(t.endswith("#12")) or r for t, r in zip(completions, exact)]

    config = rl.TrainConfig(rollouts=16, eval_every=16)
    given = {"config": config, "model": model, "tokenizer": TOKENIZER, "task": world}
    history = rl.train("grpo", reward=lax, progress=False, **given)
    assert history["reward"][-1] > 0.6
    assert history.accuracy < 0.15 if found else history.accuracy > 0.8


def test_sums_in_another_batch_differ_in_the_last_bit_and_more_in_bfloat16(rollout):
    """Alone against a batch of 64; and what bfloat16 makes of 1,000 tokens."""
    width, half = rollout.mask.shape[1], copy.deepcopy(warm_model()).bfloat16()

    def alone(model):
        rows = [rollout.rows(torch.tensor([i])) for i in range(len(rollout))]
        return torch.cat([pad(read(x, model), (0, width))[:, :width] for x in rows])

    def apart(x, y):
        return (x - y)[rollout.mask.bool()].float()

    exact = read(rollout)
    assert apart(alone(warm_model()), exact).abs().max() < ROUNDING / 5
    rounded = apart(read(rollout, half), exact)[:1000]
    assert 0.0005 < rounded.abs().mean() < 0.01 < rounded.abs().max() < 0.5
    assert 0.1 < rounded.std() * 1000**0.5 < 0.4  # Σ over 1,000 tokens, nats
    assert apart(alone(half), read(rollout, half)).abs().max() < 0.2


def test_a_restored_prefix_sees_the_wrong_digit_that_the_critic_missed():
    """31+7=30: 0.9 before its last digit and 0 behind it."""
    problem, answer = "8+8+7+8+7=", "8+8=16;16+7=23;23+8=31;31+7=30;#30"

    def value(written, m=32):
        given = {"group_size": m, "seed": 1, "max_new_tokens": 48}
        texts = rl.sample(warm_model(), TOKENIZER, [problem + written], **given)
        texts = [written + text for text in texts.texts(TOKENIZER)]
        return right(texts, [{"answer": 38}]).mean().item()

    at = answer.index("0;")
    assert (
        value("") < 0.5 and value(answer[:at]) > 0.7 and value(answer[: at + 1]) < 0.1
    )


def test_among_answers_that_finish_more_are_right_and_a_rollout_waits_for_its_longest():
    rows = WORLD.held_out(1024, seed=3)
    asked = [row["prompt"] for row in rows]
    short, whole = (
        rl.sample(warm_model(), TOKENIZER, asked, seed=2, max_new_tokens=n)
        for n in (20, 48)
    )
    paid = right(short.texts(TOKENIZER), rows)
    assert 0.14 < paid.mean() < 0.24 < paid[~short.truncated].mean() < 0.34
    assert 0.3 < whole.length.mean() / whole.length.max() < 0.45
