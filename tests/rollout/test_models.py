"""Presets, loading, critics, and causal language models from elsewhere."""

import pytest
import torch
from transformers import AutoModelForTokenClassification
from tests.worlds import (
    EOS,
    PROMPTS,
    ROUNDING,
    SMALL,
    TOKENIZER,
    gpt2,
    llama,
    random_model,
    same_weights,
    small_run,
)

from refimpl.models import (
    PRESETS,
    build,
    check_pair,
    count_parameters,
    frozen_copy,
    load,
    make_critic,
    pick_device,
)
from refimpl.rollout import log_probs, sample, values
from refimpl.tasks import make_tokenizer

IDS = torch.tensor(
    [TOKENIZER("1+2+3+4=")["input_ids"], TOKENIZER("?8+2=10;")["input_ids"]]
)
ANY_MODEL = pytest.mark.parametrize("make", [random_model, gpt2, llama])


def by_hand(preset: str) -> int:
    """Parameters of a Qwen3: q, k, v, o with two head norms; a gated MLP; two norms."""
    p = PRESETS[preset]
    hidden, head = p["hidden_size"], p["head_dim"]
    queries, keys = p["num_attention_heads"] * head, p["num_key_value_heads"] * head
    attention = 2 * hidden * queries + 2 * hidden * keys + 2 * head
    layer = attention + 3 * hidden * p["intermediate_size"] + 2 * hidden
    return len(TOKENIZER) * hidden + p["num_hidden_layers"] * layer + hidden


@pytest.mark.parametrize(
    ("preset", "low", "high"), [("tiny", 0.09e6, 0.12e6), ("small", 10e6, 30e6)]
)
def test_presets_have_the_size_they_promise(preset, low, high):
    with torch.device("meta"):  # shapes only
        model = build(preset, TOKENIZER)
    assert count_parameters(model) == by_hand(preset)
    assert low < count_parameters(model) < high


def test_embeddings_are_tied_and_in_float32():
    model = random_model()
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    assert embedding.weight is output.weight
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_the_seed_decides_the_weights_and_the_global_generator_does_not():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build("tiny", TOKENIZER, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert same_weights(first, build("tiny", TOKENIZER, seed=5))
    assert not same_weights(first, build("tiny", TOKENIZER, seed=6))


@ANY_MODEL
def test_a_saved_model_gives_identical_logits(make, tmp_path):
    model = make()
    model.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    again, tokenizer = load(tmp_path)
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    assert tokenizer(PROMPTS)["input_ids"] == TOKENIZER(PROMPTS)["input_ids"]


def test_a_frozen_copy_takes_no_gradient_and_shares_nothing():
    model = random_model()
    copy = frozen_copy(model)
    assert not any(p.requires_grad for p in copy.parameters())
    assert all(p.requires_grad for p in model.parameters())
    with torch.no_grad():
        model.get_input_embeddings().weight.add_(1)
    assert same_weights(copy, random_model())


# Critics


@ANY_MODEL
def test_a_critic_starts_at_exactly_zero_on_the_policys_body(make):
    policy = make()
    before = torch.get_rng_state()
    critic = make_critic(policy, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert critic(IDS).logits.shape == (*IDS.shape, 1)
    assert (critic(IDS).logits == 0).all()
    assert same_weights(critic.base_model, policy.base_model)
    assert all(p.requires_grad for p in critic.parameters())


@ANY_MODEL
def test_a_critic_learns_without_moving_the_policy(make):
    policy = make()
    critic = make_critic(policy)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    losses = []
    for _ in range(10):  # the body has a gradient once the head is not 0
        losses.append(((critic(IDS).logits - 1) ** 2).mean())
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[0] == 1
    assert losses[-1] < 0.9
    assert not same_weights(critic.base_model, policy.base_model)
    assert same_weights(policy, make())


def test_a_critic_has_no_dropout():
    critic = make_critic(gpt2().train())
    with torch.no_grad():
        critic.classifier.weight.fill_(0.1)
    assert torch.equal(critic(IDS).logits, critic(IDS).logits)
    assert not critic.training


def test_a_critic_saves_and_loads(tmp_path):
    critic = make_critic(random_model()).eval()
    with torch.no_grad():
        critic.score.weight.normal_(generator=torch.Generator().manual_seed(0))
    critic.save_pretrained(tmp_path)
    again = AutoModelForTokenClassification.from_pretrained(tmp_path)
    assert critic(IDS).logits.abs().max() > 0.1
    assert torch.equal(again(IDS).logits, critic(IDS).logits)


def test_a_critic_takes_the_dtype_of_its_policy():
    critic = make_critic(random_model().to(torch.float64))
    assert {p.dtype for p in critic.parameters()} == {torch.float64}


# Causal language models from elsewhere


@pytest.mark.parametrize("make", [gpt2, llama])
def test_any_causal_model_samples_what_it_scores(make):
    model = make()
    rollout = sample(model, TOKENIZER, PROMPTS, group_size=8, max_new_tokens=20)
    assert 0 < rollout.truncated.sum() < len(rollout)
    logp, _ = log_probs(model, rollout)
    assert (logp - rollout.logp).abs().max() < ROUNDING


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_any_causal_model_can_be_trained(make, algorithm):
    """A longer answer pays; before the first step every ratio is 1, dropout or not."""
    start = make()
    history = small_run(
        algorithm,
        model=start,
        rollouts=1,
        minibatches=1,
        allow_on_policy=True,
        reward=lambda completions, **_: [len(c) / 10 for c in completions],
    )
    assert history["ratio/max_deviation"][0] < 1e-4
    assert not same_weights(history.model, start)
    assert same_weights(start, make())


def test_a_tokenizer_without_padding_is_enough():
    bare = make_tokenizer()
    bare.pad_token = None
    model = random_model()
    rollout = sample(model, bare, PROMPTS, max_new_tokens=8, seed=3)
    usual = sample(model, TOKENIZER, PROMPTS, max_new_tokens=8, seed=3)
    assert torch.equal(rollout.tokens * rollout.mask, usual.tokens * usual.mask)
    assert torch.equal(rollout.logp, usual.logp)


# Errors


def test_an_unknown_preset_is_answered_with_the_nearest():
    with pytest.raises(
        ValueError,
        match=r"'tinny', did you mean 'tiny'.*tiny, tiny-moe, small, small-moe",
    ):
        build("tinny", TOKENIZER)


@pytest.mark.parametrize("kind", ["nothing", "empty folder", "broken"])
def test_a_path_without_a_model_is_refused(tmp_path, kind):
    folder = tmp_path / "model"
    if kind != "nothing":
        folder.mkdir()
    if kind == "broken":
        (folder / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"no causal language model .*/model'"):
        load(folder)


def test_a_model_saved_without_its_tokenizer_is_refused(tmp_path):
    random_model().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="tokenizer"):
        load(tmp_path)


def test_a_tokenizer_that_knows_more_tokens_than_the_model_is_refused(tmp_path):
    larger = make_tokenizer()
    larger.add_tokens(["<extra>"])
    with pytest.raises(ValueError, match="has 19 tokens, the model only 18"):
        check_pair(random_model(), larger)
    random_model().save_pretrained(tmp_path)
    larger.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="resize_token_embeddings"):
        load(tmp_path)
    check_pair(random_model(), TOKENIZER)


def test_a_tokenizer_that_cannot_end_a_response_is_refused():
    endless = make_tokenizer()
    endless.eos_token = None
    with pytest.raises(ValueError, match="no eos_token"):
        check_pair(random_model(), endless)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_a_missing_cuda_device_is_named(name):
    with pytest.raises(ValueError, match="torch sees no CUDA device; use 'cpu'"):
        pick_device(name)


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is an MPS device")
def test_a_missing_mps_device_is_named():
    with pytest.raises(ValueError, match="'mps' was asked for"):
        pick_device("mps")


@pytest.mark.parametrize("name", ["gpu", "", 3])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(ValueError, match="unknown device"):
        pick_device(name)


def test_the_cpu_is_always_there():
    assert pick_device("cpu") == torch.device("cpu")


def test_values_come_from_before_each_response_token():
    critic = make_critic(random_model())
    with torch.no_grad():
        critic.score.weight.normal_(generator=torch.Generator().manual_seed(0))
    rollout = sample(random_model(), TOKENIZER, PROMPTS, max_new_tokens=9)
    found = values(critic, rollout)
    for i, prompt in enumerate(PROMPTS):
        length = int(rollout.length[i])
        end = len(TOKENIZER(prompt)["input_ids"]) + length
        alone = critic(rollout.ids[i : i + 1, :end]).logits[0, :, 0]
        expected = alone[-length - 1 : -1]  # the state that each token was chosen in
        assert torch.allclose(found[i, :length], expected, atol=ROUNDING)
        assert (found[i, length:] == 0).all()


def test_a_fresh_model_ends_its_answers():
    """What the small runs here rely on: EOS is possible from the start."""
    rollout = sample(random_model(), TOKENIZER, PROMPTS, group_size=8)
    assert rollout.truncated.float().mean() < 0.5
    assert (rollout.tokens == EOS).any()
    assert SMALL.updates_per_rollout == 2


def test_a_gpu_that_is_not_there_is_refused_by_its_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1") == torch.device("cuda:1")
    assert pick_device("cuda") == torch.device("cuda")
    for name in ("cuda:2", "cuda:7"):
        with pytest.raises(ValueError, match=f"'{name}' .* only 2 CUDA devices"):
            pick_device(name)
