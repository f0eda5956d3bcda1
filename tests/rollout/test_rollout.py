"""Sampling and scoring are two passes over one distribution; here they must agree."""

import copy
from dataclasses import replace

import pytest
import torch
from tokenizers import normalizers

from refimpl import normalisers
from refimpl.algorithms import ALGORITHMS
from refimpl.rollout import Rollout, check_prompts, draw, end_tokens, sample
from refimpl.run import at_tokens
from refimpl.scoring import log_probs
from refimpl.tasks import Arithmetic, make_tokenizer
from refimpl.trainer import collect, prepare
from refimpl.update import _loss, _micro_batches, _weighed
from tests.worlds import (
    EOS,
    PAD,
    PROMPTS,
    ROUNDING,
    SMALL,
    TOKENIZER,
    gpt2,
    random_model,
    random_moe,
    warm_model,
)

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


def test_sampling_ignores_and_keeps_the_training_flag(monkeypatch):
    """Dropout must not act on π_old."""
    model = gpt2()
    expected = mixed_rollout(model)
    assert not model.training
    assert identical(mixed_rollout(model.train()), expected)
    assert model.training
    monkeypatch.setattr(torch, "multinomial", None)  # sampling fails half-way
    with pytest.raises(TypeError):
        mixed_rollout(model)
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


def written(text: str, mask=None, truncated=False) -> Rollout:
    """One response of the given text and then EOS, unless it is truncated."""
    ids = TOKENIZER(text)["input_ids"] + [EOS] * (not truncated)
    mask = torch.ones(1, len(ids)) if mask is None else torch.tensor([mask]).float()
    return Rollout(
        ids=torch.tensor([[*TOKENIZER("3+9=")["input_ids"], *ids]]),
        prompt_length=torch.tensor([4]),
        mask=mask,
        logp=-mask,
        entropy=mask,
        truncated=torch.tensor([truncated]),
        group=torch.tensor([0]),
    )


@pytest.mark.parametrize("special", ["<unk>", "<pad>"])
def test_special_tokens_inside_a_response_are_shown_and_never_paid(special):
    """`#1<unk>2` is not `#12`, and what begins with `<unk>` is no guess."""
    world = Arithmetic()
    for text in (f"#1{special}2", f"{special}#12", f"#12{special}"):
        assert special in TOKENIZER.all_special_tokens
        found = written(text).texts(TOKENIZER)
        assert found == [text]
        assert world.reward(["3+9="], found, answer=[12]) == [float(text[0] == "<")]
    assert world.habit(f"{special}#12") == "other"
    assert written("#12").texts(TOKENIZER) == ["#12"]


def test_only_the_token_that_ended_a_response_is_left_out_of_its_text():
    assert written("#12", truncated=True).texts(TOKENIZER) == ["#12"]
    assert written("#12<pad>", truncated=True).texts(TOKENIZER) == ["#12<pad>"]
    assert written("").texts(TOKENIZER) == [""]
    both = Rollout.join([written("#12", truncated=True), written("?8+2=10;#7")])
    assert both.texts(TOKENIZER) == ["#12", "?8+2=10;#7"]


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


# Holes: tokens inside a response that the policy did not write


def with_holes(rollout: Rollout, seed: int = 0) -> Rollout:
    """About a third of the tokens taken out, never the last of a response."""
    generator = torch.Generator().manual_seed(seed)
    out = torch.rand(rollout.mask.shape, generator=generator) < 1 / 3
    last = torch.arange(rollout.mask.shape[1]) == (rollout.length - 1)[:, None]
    return replace(rollout, mask=rollout.mask * (last | ~out))


def test_the_span_counts_holes_and_the_length_does_not():
    rollout = written("3+9=12;#12", mask=[0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1])
    assert rollout.length.tolist() == [5]
    assert rollout.span.tolist() == [11]
    assert rollout.end.tolist() == [4 + 11]
    plain = mixed_rollout()
    assert torch.equal(plain.span, plain.length.long())
    assert torch.equal(with_holes(plain).span, plain.span)
    assert (with_holes(plain).length < plain.length).any()


@pytest.mark.parametrize("make", [warm_model, random_moe])
def test_rows_and_join_keep_every_token_of_a_response_with_holes(make):
    model = make()
    rollout = with_holes(mixed_rollout(model))
    logp, entropy = log_probs(model, rollout)
    order = rollout.span.sort().indices
    for index in (order[:4], order[[5, 2, 9]], order.flip(0), order[:1]):
        part = rollout.rows(index)
        total, width = int(rollout.end[index].max()), int(rollout.span[index].max())
        assert part.ids.shape == (len(index), total)
        assert torch.equal(part.ids, rollout.ids[index, :total])
        assert torch.equal(part.mask, rollout.mask[index, :width])
        assert torch.equal(part.span, rollout.span[index])
        assert part.texts(TOKENIZER) == [rollout.texts(TOKENIZER)[i] for i in index]
        again, again_entropy = log_probs(model, part)
        assert (again - logp[index, :width]).abs().max() < ROUNDING
        assert (again_entropy - entropy[index, :width]).abs().max() < ROUNDING
    short, long = rollout.rows(order[:4]), rollout.rows(order[4:])
    joined = Rollout.join([short, long])
    expected = rollout.rows(order)
    assert torch.equal(joined.ids, expected.ids)
    assert torch.equal(joined.mask, expected.mask)
    assert torch.equal(joined.span, expected.span)


def test_log_probs_of_a_response_with_holes_are_zero_in_the_holes_alone():
    model = warm_model()
    rollout = mixed_rollout(model)
    holed = with_holes(rollout)
    for found, whole in zip(
        log_probs(model, holed), log_probs(model, rollout), strict=True
    ):
        assert torch.equal(found, whole * holed.mask)


def test_texts_hold_what_the_policy_wrote_and_no_hole():
    found = written("3+9=12;#12", mask=[1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1])
    assert found.texts(TOKENIZER) == ["3+9=#12"]
    cut = written("3+9=12;#12", mask=[0, 0, 1, 1, 0, 0, 0, 1, 1, 1], truncated=True)
    assert cut.texts(TOKENIZER) == ["9=#12"]


def test_a_row_without_any_token_of_the_policys_stays_usable():
    rollout = mixed_rollout()
    none = replace(rollout, mask=torch.zeros_like(rollout.mask))
    part = none.rows(torch.tensor([3, 1]))
    assert part.mask.shape == (2, 1)
    assert part.span.tolist() == [0, 0]
    assert log_probs(random_model(), part)[0].tolist() == [[0.0], [0.0]]


def test_means_at_tokens_leave_holes_out():
    """x is a token's place in `ids`; its log-prob arises one place before."""
    rollout = written("3+9=12;#12", mask=[0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1])
    x = torch.arange(15.0)[None]
    assert at_tokens(x, rollout) == (5 + 6 + 10 + 13) / 4


@pytest.mark.parametrize("make", [warm_model, random_moe])
def test_micro_batches_of_responses_with_holes_add_up_to_the_whole(make):
    """In gradient, and to the loss that the same tensors have by hand."""

    def losses(size):
        config = replace(SMALL, micro_batch_size=size, router_aux_loss=0.0)
        run = prepare("grpo", config, make(), TOKENIZER, None, by_place)
        batch, _ = collect(run, 0)
        rollout = with_holes(batch.rollout)
        batch = replace(batch, rollout=rollout, mask=rollout.mask)
        weighed, tokens = _weighed(run, batch, torch.arange(16))
        with torch.no_grad():  # so that the ratio is not 1
            run.model.get_output_embeddings().weight.mul_(1.1)
        total = 0.0
        for part in _micro_batches(run, weighed, torch.arange(16)):
            loss = _loss(run, part, tokens)[0]
            loss.backward()
            total += loss.item()
        return run, batch, total, run.model.get_input_embeddings().weight.grad

    run, batch, whole, gradient = losses(16)
    _, _, shared, again = losses(3)
    logp, _ = log_probs(run.model, batch.rollout)
    weight = normalisers.seq_mean_token_mean(batch.mask)
    by_hand = ALGORITHMS["grpo"].policy_loss(
        logp, batch.old_logp, batch.advantages, batch.mask, weight
    )
    assert abs(whole - by_hand.loss.item()) < ROUNDING
    assert abs(whole - shared) < ROUNDING
    assert gradient.abs().max() > 1e-2
    assert (gradient - again).abs().max() < ROUNDING


def by_place(completions, **_):
    return [float(i % 4) for i in range(len(completions))]


# Several tokens that end a response


def ends_with(model, ends):
    """A copy of `model` whose generation config names `ends`."""
    model = copy.deepcopy(model)
    model.generation_config.eos_token_id = ends
    return model


def token(character: str) -> int:
    return TOKENIZER(character)["input_ids"][0]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (None, [EOS]),
        (EOS, [EOS]),
        ([EOS], [EOS]),
        (7, [EOS, 7]),
        ([9, 7], [EOS, 7, 9]),
        ((9, EOS), [EOS, 9]),
    ],
)
def test_the_tokenizers_and_the_models_ends_all_count(ends, expected):
    assert end_tokens(ends_with(random_model(), ends), TOKENIZER).tolist() == expected


def test_a_model_without_a_generation_config_ends_with_the_tokenizers_token():
    model = random_model()
    for absent in (None, torch.nn.Module()):
        model.generation_config = absent
        assert end_tokens(model, TOKENIZER).tolist() == [EOS]
    del model.generation_config
    assert end_tokens(model, TOKENIZER).tolist() == [EOS]


def test_any_of_several_ends_is_the_last_token_of_its_response():
    ends = [EOS, token(";"), token("#")]
    model = ends_with(random_model(), ends[1:])
    rollout = mixed_rollout(model)
    seen = set()
    for i in range(len(rollout)):
        length = int(rollout.length[i])
        response = rollout.tokens[i, :length].tolist()
        found = [t for t in response if t in ends]
        assert found == response[-1:] * (not rollout.truncated[i])
        seen |= set(found)
    assert seen == set(ends)
    logp, _ = log_probs(model, rollout)
    assert (logp - rollout.logp).abs().max() < ROUNDING
    for text in rollout.texts(TOKENIZER):
        assert not set(";#") & set(text)


def test_several_ends_stop_where_generate_stops():
    """`generate` is the witness; the careful habit writes `;` after each step."""
    model = ends_with(warm_model(), [token(";"), token("#")])
    batch = TOKENIZER(PROMPTS, padding=True, padding_side="left", return_tensors="pt")
    batch.pop("token_type_ids", None)
    given = model.generate(
        **batch,
        max_new_tokens=40,
        do_sample=False,
        eos_token_id=[EOS, token(";"), token("#")],
    )[:, batch["input_ids"].shape[1] :]
    rollout = mixed_rollout(model, group_size=1, temperature=1e-4, max_new_tokens=40)
    expected = [[int(t) for t in row if t != PAD] for row in given]
    found = [
        row[: int(n)].tolist()
        for row, n in zip(rollout.tokens, rollout.span, strict=True)
    ]
    assert found == expected
    assert not rollout.truncated.any()
    plain = mixed_rollout(
        warm_model(), group_size=1, temperature=1e-4, max_new_tokens=40
    )
    assert (rollout.length < plain.length).any()


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
    with pytest.raises(ValueError, match=r"temperature must be a .*number > 0, got"):
        mixed_rollout(temperature=temperature)


@pytest.mark.parametrize("prompt", ["", None, 12, ["1+2="]])
def test_a_prompt_must_be_text(prompt):
    with pytest.raises(ValueError, match="non-empty string, got "):
        sample(random_model(), TOKENIZER, ["1+2=", prompt])


def test_no_prompts_at_all_are_refused():
    with pytest.raises(ValueError, match="prompt"):
        sample(random_model(), TOKENIZER, [])


def test_a_prompt_of_no_tokens_is_refused():
    """Beside others its log-probs would be those of padding; alone there are none."""
    stripping = make_tokenizer()
    stripping.backend_tokenizer.normalizer = normalizers.Strip()
    assert stripping("  ")["input_ids"] == []
    for prompts in (["1+2=", "  "], ["  ", "1+2="], ["  "]):
        with pytest.raises(ValueError, match="no token of the prompt '  '"):
            sample(random_model(), stripping, prompts)
    kept = sample(random_model(), stripping, [" 1+2= ", "0+0="], max_new_tokens=4)
    assert kept.prompt_length.tolist() == [4, 4]


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


@pytest.mark.parametrize("vocabulary", [7, 16 * 256, 16 * 256 + 100])
def test_tokens_are_drawn_by_their_probability(vocabulary):
    """Also where parts of the vocabulary are drawn first, the last part not full."""
    at = {2: 0.5, 5: 0.2, vocabulary - 3: 0.25, vocabulary - 1: 0.05}
    prob = torch.zeros(1, vocabulary)
    for token, p in at.items():
        prob[0, token] = p
    n = 40_000
    drawn = draw(prob.expand(n, -1), torch.Generator().manual_seed(0))[:, 0]
    assert set(drawn.tolist()) == set(at)  # never a token of probability 0
    for token, p in at.items():
        found = (drawn == token).double().mean().item()
        assert abs(found - p) < 5 * (p * (1 - p) / n) ** 0.5, (token, found)
