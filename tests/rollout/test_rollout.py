"""Sampling and scoring are two passes over one distribution; here they must agree."""

import pytest
import torch
from tests.worlds import (
    EOS,
    PAD,
    PROMPTS,
    ROUNDING,
    TOKENIZER,
    gpt2,
    random_model,
    warm_model,
)

from refimpl.rollout import Rollout, check_prompts, log_probs, sample

MODELS = pytest.mark.parametrize("make", [warm_model, random_model, gpt2])


def mixed_rollout(model=None, **changes) -> Rollout:
    """16 responses to prompts of three lengths; some end early, some never."""
    settings = {"group_size": 4, "max_new_tokens": 20, "seed": 7, **changes}
    return sample(model or random_model(), TOKENIZER, PROMPTS, **settings)


def identical(one: Rollout, other: Rollout) -> bool:
    return all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in one.__dataclass_fields__
        if getattr(one, name) is not None or getattr(other, name) is not None
    )


# The two passes agree


@MODELS
@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
def test_the_sampler_and_teacher_forcing_agree(make, temperature):
    model = make()
    for seed in range(3):
        rollout = mixed_rollout(model, temperature=temperature, seed=seed)
        assert len(set(rollout.length.tolist())) > 3
        logp, entropy = log_probs(model, rollout, temperature)
        assert (logp - rollout.logp).abs().max() < ROUNDING
        assert (entropy - rollout.entropy).abs().max() < ROUNDING
        other, other_entropy = log_probs(model, rollout, temperature + 0.2)
        assert (other - rollout.logp).abs().max() > 1e-2
        assert (other_entropy - rollout.entropy).abs().max() > 1e-3


@MODELS
def test_a_row_alone_scores_as_it_does_in_a_batch(make):
    """Neither another row's length nor its prompt may reach this row."""
    model = make()
    rollout = mixed_rollout(model)
    logp, entropy = log_probs(model, rollout, 0.8)
    for i in range(len(rollout)):
        alone, alone_entropy = log_probs(model, rollout.rows(torch.tensor([i])), 0.8)
        width = alone.shape[1]
        assert width == rollout.length[i]
        assert (alone[0] - logp[i, :width]).abs().max() < ROUNDING
        assert (alone_entropy[0] - entropy[i, :width]).abs().max() < ROUNDING


def test_log_probs_and_entropies_are_those_of_a_plain_forward_pass():
    """One row at a time, one token at a time, from the definition."""
    model, temperature = warm_model(), 0.7
    rollout = mixed_rollout(model)
    logp, entropy = log_probs(model, rollout, temperature)
    for i in range(len(rollout)):
        start, length = int(rollout.prompt_length[i]), int(rollout.length[i])
        for t in range(length):
            logits = model(rollout.ids[i : i + 1, : start + t]).logits[0, -1]
            p = (logits.double() / temperature).softmax(-1)
            token = rollout.ids[i, start + t]
            assert abs(p[token].log().item() - logp[i, t].item()) < ROUNDING
            direct = -(p * p.clamp(min=1e-300).log()).sum().item()
            assert abs(direct - entropy[i, t].item()) < ROUNDING
        assert (logp[i, length:] == 0).all()
        assert (entropy[i, length:] == 0).all()


def test_the_gradient_of_a_batch_is_the_sum_over_its_rows_alone():
    """What stands in the padding, or in another row, takes no part."""

    def gradient(rows):
        model = random_model()
        for index in rows:
            log_probs(model, rollout.rows(index))[0].sum().backward()
        return model.get_input_embeddings().weight.grad

    rollout = mixed_rollout()
    every = torch.arange(len(rollout))
    batch, alone = gradient([every]), gradient(every[:, None])
    assert alone.abs().max() > 1
    assert (batch - alone).abs().max() < 1e-4


def test_near_greedy_sampling_is_greedy_generation():
    """transformers' own `generate` is the witness for positions and padding."""
    model = warm_model()
    batch = TOKENIZER(PROMPTS, padding=True, padding_side="left", return_tensors="pt")
    batch.pop("token_type_ids", None)
    written = model.generate(**batch, max_new_tokens=40, do_sample=False)
    expected = written[:, batch["input_ids"].shape[1] :]
    rollout = mixed_rollout(model, group_size=1, temperature=1e-4, max_new_tokens=40)
    texts = TOKENIZER.batch_decode(expected, skip_special_tokens=True)
    assert rollout.texts(TOKENIZER) == texts


# Randomness


def test_the_seed_decides_the_rollout():
    assert identical(mixed_rollout(seed=1), mixed_rollout(seed=1))
    assert not torch.equal(mixed_rollout(seed=1).tokens, mixed_rollout(seed=2).tokens)


def test_the_global_generator_neither_moves_nor_matters():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = mixed_rollout()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert identical(mixed_rollout(), first)


def test_the_responses_to_one_prompt_differ():
    texts = mixed_rollout().texts(TOKENIZER)
    assert all(len(set(texts[i : i + 4])) > 1 for i in range(0, 16, 4))


def test_sampling_ignores_and_keeps_the_training_flag():
    """Dropout must not act on π_old."""
    model = gpt2()
    expected = mixed_rollout(model)
    assert not model.training
    assert identical(mixed_rollout(model.train()), expected)
    assert model.training


# Shape of a rollout


@MODELS
def test_the_mask_is_one_through_eos_and_zero_after(make):
    limit, rollout = 20, mixed_rollout(make(), max_new_tokens=20)
    assert 0 < rollout.truncated.sum() < len(rollout)
    for i in range(len(rollout)):
        length = int(rollout.length[i])
        steps = torch.arange(rollout.mask.shape[1])
        assert torch.equal(rollout.mask[i], (steps < length).float())
        response = rollout.tokens[i, :length].tolist()
        if rollout.truncated[i]:
            assert EOS not in response
            assert length == limit
        else:
            assert response.index(EOS) == length - 1
        assert (rollout.logp[i, :length] < 0).all()
        assert (rollout.logp[i, length:] == 0).all()


def test_rows_hold_prompt_response_padding_without_a_gap():
    rollout = mixed_rollout()
    for i in range(len(rollout)):
        prompt = TOKENIZER(PROMPTS[i // 4])["input_ids"]
        end = len(prompt) + int(rollout.length[i])
        assert rollout.prompt_length[i] == len(prompt)
        assert rollout.group[i] == i // 4
        row = rollout.ids[i].tolist()
        assert row[: len(prompt)] == prompt
        assert row[len(prompt) : end] == rollout.tokens[i, : end - len(prompt)].tolist()
        assert set(row[end:]) <= {PAD}


def test_texts_are_the_responses_without_their_end():
    rollout = mixed_rollout(warm_model())
    for text, row, n in zip(
        rollout.texts(TOKENIZER), rollout.tokens, rollout.length, strict=True
    ):
        written = [int(token) for token in row[: int(n)] if token != EOS]
        assert TOKENIZER(text)["input_ids"] == written


def test_a_rollout_can_enter_a_graph():
    rollout = mixed_rollout()
    for name in rollout.__dataclass_fields__:
        tensor = getattr(rollout, name)
        if tensor is None:  # a dense model has no experts
            continue
        assert not tensor.is_inference()
        assert not tensor.requires_grad
    weight = torch.ones((), requires_grad=True)
    (weight * rollout.logp).sum().backward()
    assert weight.grad == rollout.logp.sum()


def test_rows_cut_padding_off_and_change_nothing_else():
    model = warm_model()
    rollout = mixed_rollout(model, max_new_tokens=40)
    logp, entropy = log_probs(model, rollout)
    order = rollout.length.sort().indices
    for index in (order[:4], order[[5, 2, 9]], order.flip(0)):
        part = rollout.rows(index)
        width = int(rollout.length[index].max())
        total = int((rollout.prompt_length + rollout.length)[index].max())
        assert part.mask.shape == part.logp.shape == (len(index), width)
        assert part.ids.shape == (len(index), total)
        assert torch.equal(part.length, rollout.length[index])
        assert torch.equal(part.group, rollout.group[index])
        assert torch.equal(part.logp, rollout.logp[index, :width])
        again, again_entropy = log_probs(model, part)
        assert (again - logp[index, :width]).abs().max() < ROUNDING
        assert (again_entropy - entropy[index, :width]).abs().max() < ROUNDING
    assert rollout.rows(order[:4]).ids.shape[1] < rollout.ids.shape[1]


# The distribution


def every_sequence(model, prompt: str, limit: int, temperature: float) -> dict:
    """The exact probability of every response of at most `limit` tokens."""
    start = TOKENIZER(prompt)["input_ids"]
    found, open_ = {}, {(): 1.0}
    for t in range(limit):
        ids = torch.tensor([[*start, *prefix] for prefix in open_])
        with torch.no_grad():
            logits = model(ids).logits[:, -1].double()
        rows = (logits / temperature).softmax(-1).tolist()
        reached = {
            (*prefix, token): before * p
            for (prefix, before), row in zip(open_.items(), rows, strict=True)
            for token, p in enumerate(row)
        }
        ended = {s: p for s, p in reached.items() if s[-1] == EOS or t + 1 == limit}
        found.update(ended)
        open_ = {s: p for s, p in reached.items() if s not in ended}
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_whole_responses_come_as_often_as_the_model_says(temperature):
    """χ² over all responses of up to 3 tokens, beside rows that end and leave."""
    model, prompts, draws, limit = gpt2(), ["0+0=", "9+8+7+6+5="], 4000, 3
    rollout = sample(
        model,
        TOKENIZER,
        prompts,
        group_size=draws,
        max_new_tokens=limit,
        temperature=temperature,
        seed=11,
    )
    assert 0.05 < 1 - rollout.truncated.float().mean() < 0.5
    for group, prompt in enumerate(prompts):
        exact = every_sequence(model, prompt, limit, temperature)
        assert abs(sum(exact.values()) - 1) < 1e-9
        seen = dict.fromkeys(exact, 0)
        own = rollout.rows((rollout.group == group).nonzero()[:, 0])
        for row, n in zip(own.tokens.tolist(), own.length.long().tolist(), strict=True):
            seen[tuple(row[:n])] += 1
        cells = [(seen[s], draws * p) for s, p in exact.items() if draws * p >= 5]
        rest = draws - sum(o for o, _ in cells), draws - sum(e for _, e in cells)
        statistic = sum((o - e) ** 2 / e for o, e in [*cells, rest])
        freedom = len(cells)
        assert freedom > 50
        assert statistic < freedom + 4 * (2 * freedom) ** 0.5


def test_the_second_token_follows_the_first():
    """Dropping rows must not hand a row's cache or token to its neighbour."""
    model = gpt2()
    rollout = sample(
        model, TOKENIZER, PROMPTS, group_size=500, max_new_tokens=4, seed=5
    )
    assert (rollout.length == 1).sum() > 20
    logp, _ = log_probs(model, rollout)
    assert (logp - rollout.logp).abs().max() < ROUNDING


# Errors


@pytest.mark.parametrize("temperature", [0, 0.0, -1.0, float("nan")])
def test_a_temperature_without_a_distribution_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature must be > 0"):
        mixed_rollout(temperature=temperature)


@pytest.mark.parametrize("prompt", ["", None, 12, ["1+2="]])
def test_a_prompt_must_be_text(prompt):
    with pytest.raises(ValueError, match="non-empty string, got "):
        sample(random_model(), TOKENIZER, ["1+2=", prompt])


def test_no_prompts_at_all_are_refused():
    with pytest.raises(ValueError, match="prompt"):
        sample(random_model(), TOKENIZER, [])


@pytest.mark.parametrize(("length", "new"), [(10, 119), (128, 1), (300, 1)])
def test_a_prompt_that_leaves_too_little_room_is_refused(length, new):
    with pytest.raises(ValueError, match=f"{length} tokens .* {new}, .* 128 positions"):
        sample(random_model(), TOKENIZER, ["1" * length], max_new_tokens=new)


def test_the_last_position_can_be_used():
    model, prompts = random_model(), ["1" * 120, "1"]
    check_prompts(model, TOKENIZER, prompts, 8)
    rollout = sample(model, TOKENIZER, prompts, group_size=8, max_new_tokens=8)
    logp, _ = log_probs(model, rollout)
    assert rollout.ids.shape[1] == 128
    assert (logp - rollout.logp).abs().max() < ROUNDING
