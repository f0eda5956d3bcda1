"""Which causal language models can be sampled from: all that agree with themselves."""

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from refimpl import UserError, log_probs, sample
from refimpl.logprobs import check_sampling
from tests.rollout.families import NO_CACHE_ROWS, OTHER_NUMBERS, SUPPORTED, build
from tests.worlds import PROMPTS, ROUNDING, TOKENIZER, gpt2, random_model, warm_model


def each(families: dict):
    return pytest.mark.parametrize(
        ("kind", "settings"), families.values(), ids=list(families)
    )


@each(SUPPORTED)
def test_the_sampler_and_teacher_forcing_agree(kind, settings):
    """Prompts of three lengths, rows that end early; and a gradient comes back."""
    model = build(kind, settings)
    check_sampling(model)
    drawn = {"group_size": 8, "max_new_tokens": 20, "temperature": 2.0}
    rollout = sample(model, TOKENIZER, PROMPTS, **drawn)
    lengths = rollout.length.tolist()
    assert len(set(lengths)) > 1
    assert max(lengths) > 12
    assert rollout.logp[rollout.mask.bool()].std() > 0.3
    logp, entropy = log_probs(model, rollout, 2.0)
    assert (logp - rollout.logp).abs().max() < ROUNDING
    assert (entropy - rollout.entropy).abs().max() < ROUNDING
    logp.sum().backward()
    assert model.get_input_embeddings().weight.grad.abs().max() > 0


def test_the_check_passes_a_policy_in_any_precision_and_leaves_no_trace():
    """Neither on the global generator nor on the model; dropout takes no part."""
    no_opinions = random_model()  # a spread of 0 is no reason to refuse
    torch.nn.init.zeros_(no_opinions.model.norm.weight)
    halves = random_model().double(), random_model().bfloat16()
    for model in (warm_model(), no_opinions, *halves):
        check_sampling(model)
    model = gpt2().train()
    before = torch.get_rng_state()
    check_sampling(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert all(p.grad is None for p in model.parameters())


def refusal(model) -> str:
    with pytest.raises(UserError, match=f"^{type(model).__name__} ") as caught:
        check_sampling(model)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) < 320
    return sentence


@each(NO_CACHE_ROWS)
def test_a_model_whose_cache_has_no_rows_to_select_is_refused(kind, settings):
    assert "cannot be sampled from here" in refusal(build(kind, settings))


@each(OTHER_NUMBERS)
def test_a_model_that_gives_other_numbers_with_a_cache_is_refused(kind, settings):
    assert "gives a sampled token other log-probs" in refusal(build(kind, settings))


def test_an_encoder_with_a_decoder_and_a_model_that_is_not_finite_are_refused():
    config = T5Config(vocab_size=18, d_model=32, d_ff=64, num_layers=2, num_heads=4)
    refusal(T5ForConditionalGeneration(config))
    model = random_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    assert "no longer finite" in refusal(model)


@pytest.mark.parametrize(("by", "refused"), [(0.05, True), (1e-3, False)])
def test_a_small_gap_is_refused_and_rounding_is_not(by, refused):
    """Logits that are larger by this share with a cache than without."""

    def enlarged(_module, _inputs, given, output):
        output.logits = output.logits * (1 + by * (given.get("use_cache") is True))

    model = random_model()
    model.register_forward_hook(enlarged, with_kwargs=True)
    if refused:
        assert "other log-probs" in refusal(model)
    else:
        check_sampling(model)
