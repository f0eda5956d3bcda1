"""Sampling and reading are two passes over one distribution; here they must agree."""

import copy
from dataclasses import replace

import pytest
import torch

from refimpl import UserError, log_probs, sample, sampling
from refimpl.rollout import FREE, Rollout
from refimpl.sampling import Decoder, end_tokens
from tests.worlds import (
    EOS,
    PAD,
    PROMPTS,
    ROUNDING,
    TOKENIZER,
    gpt2,
    random_model,
    redrawn,
    rollout_of,
    warm_model,
)

MODELS = pytest.mark.parametrize("make", [warm_model, random_model, gpt2])


def mixed_rollout(model=None, **changes) -> Rollout:
    """16 responses to prompts of three lengths; some end early, some never."""
    settings = {"group_size": 4, "max_new_tokens": 20, "seed": 7, **changes}
    return sample(model or random_model(), TOKENIZER, PROMPTS, **settings)


def identical(one: Rollout, other: Rollout) -> bool:
    names = ("ids", "mask", "logp", "entropy", "truncated")
    return all(torch.equal(getattr(one, n), getattr(other, n)) for n in names)


# The two passes agree


@MODELS
def test_log_probs_and_entropies_are_those_of_each_row_alone(make):
    """From the definition; neither another row's length nor its prompt may matter."""
    model, temperature = make(), 0.7
    rollout = mixed_rollout(model)
    logp, entropy = log_probs(model, rollout, temperature)
    for i in range(len(rollout)):
        start, end = int(rollout.prompt_length[i]), int(rollout.end[i])
        logits = model(rollout.ids[i : i + 1, :end]).logits[0, start - 1 : -1]
        p, n = (logits.double() / temperature).softmax(-1), end - start
        right = p.gather(-1, rollout.ids[i, start:end, None])[:, 0].log()
        assert (logp[i, :n] - right).abs().max() < ROUNDING
        right = -(p * p.clamp(min=1e-300).log()).sum(-1)
        assert (entropy[i, :n] - right).abs().max() < ROUNDING
        assert (logp[i, n:] == 0).all() and (entropy[i, n:] == 0).all()


def token(character: str) -> int:
    return TOKENIZER(character)["input_ids"][0]


def ends_with(model, ends):
    """A copy of `model` whose generation config names `ends`."""
    model = copy.deepcopy(model)
    model.generation_config.eos_token_id = ends
    return model


@pytest.mark.parametrize("ends", [[EOS], [EOS, token(";"), token("#")]])
def test_near_greedy_sampling_is_greedy_generation(ends):
    """transformers' own `generate` is the witness for positions, padding and ends;
    the careful habit writes `;` after each step."""
    model = ends_with(warm_model(), ends[1:] or None)
    batch = TOKENIZER(PROMPTS, padding=True, padding_side="left", return_tensors="pt")
    batch.pop("token_type_ids", None)
    settings = {"max_new_tokens": 40, "do_sample": False, "eos_token_id": ends}
    given = model.generate(**batch, **settings)[:, batch["input_ids"].shape[1] :]
    rollout = mixed_rollout(model, group_size=1, temperature=1e-4, max_new_tokens=40)
    rows = zip(rollout.tokens, rollout.span, strict=True)
    written = [row[: int(n)].tolist() for row, n in rows]
    assert written == [[int(t) for t in row if t != PAD] for row in given]
    assert {row[-1] for row in written} <= set(ends)
    assert not rollout.truncated.any()
    assert rollout.texts(TOKENIZER) == [TOKENIZER.decode(row[:-1]) for row in written]


def test_sampling_ignores_and_keeps_the_training_flag(monkeypatch):
    """Dropout must not act on π_old."""
    model = gpt2()
    expected = mixed_rollout(model)
    assert not model.training
    assert identical(mixed_rollout(model.train()), expected)
    assert model.training
    monkeypatch.setattr("refimpl.sampling.draw_token", None)  # sampling fails half-way
    with pytest.raises(TypeError):
        mixed_rollout(model)
    assert model.training


# Shape of a rollout


@MODELS
def test_rows_hold_prompt_and_response_through_eos_without_a_gap(make):
    limit, rollout = 20, mixed_rollout(make(), max_new_tokens=20)
    assert 0 < rollout.truncated.sum() < len(rollout)
    for i in range(len(rollout)):
        length, prompt = int(rollout.length[i]), TOKENIZER(PROMPTS[i // 4])["input_ids"]
        steps = torch.arange(rollout.mask.shape[1])
        assert torch.equal(rollout.mask[i], (steps < length).float())
        response = rollout.tokens[i, :length].tolist()
        if rollout.truncated[i]:
            assert EOS not in response and length == limit
        else:
            assert response.index(EOS) == length - 1
        assert (rollout.logp[i, :length] < 0).all()
        assert (rollout.logp[i, length:] == 0).all()
        assert rollout.prompt_length[i] == len(prompt) and rollout.group[i] == i // 4
        row, end = rollout.ids[i].tolist(), len(prompt) + length
        assert row[:end] == prompt + response
        assert set(row[end:]) <= {PAD}


def written(text: str, mask=None, truncated=False) -> Rollout:
    """One response of the given text and then EOS, unless it is truncated."""
    ids = TOKENIZER(text)["input_ids"] + [EOS] * (not truncated)
    mask = torch.ones(1, len(ids)) if mask is None else torch.tensor([mask]).float()
    ids = torch.tensor([[*TOKENIZER("3+9=")["input_ids"], *ids]])
    known = {"ids": ids, "prompt_length": torch.tensor([4])}
    return rollout_of(mask, truncated=torch.tensor([truncated]), **known)


CUT = {"truncated": True}
HOLE, HOLES = [1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 0, 1, 1, 1]
TEXTS = {
    "ended": ("#12", {}, "#12"),
    "ended at once": ("", {}, ""),
    "cut off": ("#12", CUT, "#12"),
    "cut off after a special token": ("#12<pad>", CUT, "#12<pad>"),
    "special tokens inside": ("<unk>#1<pad>2", {}, "<unk>#1<pad>2"),
    "with a hole": ("3+9=12;#12", {"mask": HOLE}, "3+9=#12"),
    "with holes, cut off": ("3+9=12;#12", {"mask": HOLES, **CUT}, "9=#12"),
}


@pytest.mark.parametrize(("text", "settings", "wanted"), TEXTS.values(), ids=TEXTS)
def test_texts_are_what_the_policy_wrote_but_for_the_token_that_ended_it(
    text, settings, wanted
):
    rollout = written(text, **settings)
    assert rollout.texts(TOKENIZER) == [wanted]
    both = Rollout.join([rollout, written("?8+2=10;#7")])
    assert both.texts(TOKENIZER) == [wanted, "?8+2=10;#7"]


def test_joined_groups_are_numbered_on_by_the_largest_id():
    """Also where some were left out: of ids 0 and 2, the next is 3, not 2."""
    rollout = mixed_rollout(group_size=2)
    part = rollout.rows(torch.tensor([0, 1, 4, 5]))
    assert part.group.tolist() == [0, 0, 2, 2]
    joined = Rollout.join([part, part, rollout])
    assert joined.group.tolist() == [0, 0, 2, 2, 3, 3, 5, 5, *rollout.group + 6]
    assert len(Rollout.join([part, part]).group.unique()) == 4


# Holes: tokens inside a response that the policy did not write


def with_holes(rollout: Rollout, seed: int = 0) -> Rollout:
    """About a third of the tokens taken out, never the last of a response."""
    generator = torch.Generator().manual_seed(seed)
    out = torch.rand(rollout.mask.shape, generator=generator) < 1 / 3
    last = torch.arange(rollout.mask.shape[1]) == (rollout.length - 1)[:, None]
    return replace(rollout, mask=rollout.mask * (last | ~out))


@pytest.mark.parametrize("holes", [False, True])
def test_rows_and_join_cut_padding_off_and_change_nothing_else(holes):
    model = warm_model()
    rollout = mixed_rollout(model, max_new_tokens=40)
    spans, rollout = rollout.length.long(), with_holes(rollout) if holes else rollout
    assert torch.equal(rollout.span, spans)  # which counts holes
    assert (rollout.length < spans).any() == holes
    real = (torch.arange(rollout.ids.shape[1]) < rollout.end[:, None])[..., None, None]
    seen = torch.arange(real.numel()).view(real.shape)
    recorded = {"experts": torch.where(real, seen, FREE), "router_logp": real * -0.1}
    rollout = replace(rollout, **recorded)
    whole = log_probs(model, rollout)
    order = rollout.span.sort().indices
    for index in (order[:4], order[[5, 2, 9]], order.flip(0), order[:1]):
        part = rollout.rows(index)
        total, width = int(rollout.end[index].max()), int(rollout.span[index].max())
        for name in ("ids", "experts", "router_logp"):
            expected = getattr(rollout, name)[index, :total]
            assert torch.equal(getattr(part, name), expected)
        for name in ("mask", "logp", "entropy"):
            expected = getattr(rollout, name)[index, :width]
            assert torch.equal(getattr(part, name), expected)
        for name in ("span", "length", "group", "truncated", "prompt_length"):
            assert torch.equal(getattr(part, name), getattr(rollout, name)[index])
        assert part.texts(TOKENIZER) == [rollout.texts(TOKENIZER)[i] for i in index]
        for again, every in zip(log_probs(model, part), whole, strict=True):
            assert (again - every[index, :width]).abs().max() < ROUNDING
    assert rollout.rows(order[:4]).ids.shape[1] < rollout.ids.shape[1]
    nothing = replace(rollout, mask=0 * rollout.mask).rows(torch.tensor([3, 1]))
    assert log_probs(model, nothing)[0].tolist() == [[0.0], [0.0]]
    joined = Rollout.join([rollout.rows(order[:4]), rollout.rows(order[4:])])
    expected = rollout.rows(order)
    for name in ("ids", "mask", "logp", "entropy", "span", "truncated", *recorded):
        assert torch.equal(getattr(joined, name), getattr(expected, name))


# Several tokens that end a response


@pytest.mark.parametrize(
    ("ends", "more"),
    [(None, []), (EOS, []), (7, [7]), ([9, 7], [7, 9]), ((9, EOS), [9])],
)
def test_the_tokenizers_and_the_models_ends_all_count(ends, more):
    model = ends_with(random_model(), ends)
    assert end_tokens(model, TOKENIZER).tolist() == [EOS, *more]
    for absent in (None, torch.nn.Module()):
        model.generation_config = absent
        assert end_tokens(model, TOKENIZER).tolist() == [EOS]


# The distribution


def every_sequence(model, prompt: str, limit: int, temperature: float) -> dict:
    """The exact probability of every response of at most `limit` tokens."""
    start = TOKENIZER(prompt)["input_ids"]
    whole, open_ = {}, {(): 1.0}
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
        whole.update(ended)
        open_ = {s: p for s, p in reached.items() if s not in ended}
    return whole


def test_whole_responses_come_as_often_as_the_model_says():
    """χ² over all responses of up to 3 tokens, beside rows that end and leave."""
    model, prompts, draws = redrawn(gpt2()), ["0+0=", "9+8+7+6+5="], 4000
    settings = {"max_new_tokens": 3, "temperature": 0.7, "seed": 11}
    rollout = sample(model, TOKENIZER, prompts, group_size=draws, **settings)
    assert 0.05 < 1 - rollout.truncated.float().mean() < 0.5
    for group, prompt in enumerate(prompts):
        exact = every_sequence(model, prompt, 3, 0.7)
        assert abs(sum(exact.values()) - 1) < 1e-9
        seen = dict.fromkeys(exact, 0)
        part = rollout.rows((rollout.group == group).nonzero()[:, 0])
        lengths = part.length.long().tolist()
        for row, n in zip(part.tokens.tolist(), lengths, strict=True):
            seen[tuple(row[:n])] += 1
        cells = [(seen[s], draws * p) for s, p in exact.items() if draws * p >= 5]
        rest = draws - sum(o for o, _ in cells), draws - sum(e for _, e in cells)
        statistic = sum((o - e) ** 2 / e for o, e in [*cells, rest])
        freedom = len(cells)
        assert freedom > 50
        assert statistic < freedom + 4 * (2 * freedom) ** 0.5


# Errors


def test_the_last_position_can_be_used_and_none_after_it():
    model, prompts = random_model(), ["1" * 120, "1"]
    with pytest.raises(UserError, match=r"120 tokens .* 9, .* 128 positions"):
        sample(model, TOKENIZER, prompts, max_new_tokens=9)
    rollout = sample(model, TOKENIZER, prompts, group_size=8, max_new_tokens=8)
    logp, _ = log_probs(model, rollout)
    assert rollout.ids.shape[1] == 128
    assert (logp - rollout.logp).abs().max() < ROUNDING


# The sampler's reader: rows that leave, rows that stay


ALIKE = ["1+2+3+4+5=", "1+2+3+4+=", "1+2+3+4+67+8="]  # eight alike, then not


def drawn(model, reader: type[Decoder], monkeypatch, **settings):
    """Forty responses, hot, so that rows leave at different times."""
    monkeypatch.setattr(sampling, "decoder", lambda _: reader)
    settings = {"group_size": 40, "temperature": 3.0, "max_new_tokens": 24} | settings
    return sample(model, TOKENIZER, ALIKE, **settings)
