"""Presets, loading, critics, and causal language models from elsewhere."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForTokenClassification
from transformers.utils import logging

from refimpl import models
from refimpl.models import (
    PRESETS,
    build,
    check_pair,
    count_parameters,
    frozen_copy,
    load,
    make_critic,
    no_progress_bar,
    one_thread,
    pick_device,
    trainable_copy,
)
from refimpl.rollout import sample
from refimpl.scoring import check_sampling, log_probs, values
from refimpl.tasks import make_tokenizer
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


def test_a_trainable_copy_shares_nothing_and_has_no_dropout():
    model = gpt2().train()
    copied = trainable_copy(model)
    assert not copied.training
    assert model.training
    assert same_weights(copied, model)
    with torch.no_grad():
        copied.get_input_embeddings().weight.add_(1)
    assert same_weights(model, gpt2())


# Weights that are not trained


def frozen_below(model):
    """Only the last layer and the final norm learn; the embedding is tied."""
    model.requires_grad_(False)
    model.model.layers[-1].requires_grad_(True)
    model.model.norm.requires_grad_(True)
    return model


def trained(model) -> dict:
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def test_a_trainable_copy_keeps_frozen_weights_frozen():
    model = frozen_below(random_model())
    copied = trainable_copy(model)
    assert trained(copied).keys() == trained(model).keys()
    assert 0 < len(trained(copied)) < len(list(copied.parameters()))
    whole = trainable_copy(random_model())
    assert trained(whole).keys() == dict(random_model().named_parameters()).keys()


def test_a_model_with_nothing_to_train_is_refused_before_any_work(monkeypatch):
    model = random_model().requires_grad_(False)
    with pytest.raises(ValueError, match=r"no weight .* model.requires_grad_\(True\)"):
        trainable_copy(model)
    monkeypatch.setattr("refimpl.collect.sample", None)
    with pytest.raises(ValueError, match="no weight of the model needs a gradient"):
        small_run(model=model)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_training_leaves_frozen_layers_alone(algorithm):
    model = frozen_below(random_model())
    history = small_run(algorithm, model=model, reward=by_length, beta=0.1)
    before, after = random_model().state_dict(), history.model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == trained(model).keys()
    assert trained(history.model).keys() == trained(model).keys()
    assert same_weights(model, random_model())


def by_length(completions, **_):
    return [float(len(c)) for c in completions]


class LowRank(nn.Module):
    """W x + B A x with W frozen: LoRA (2106.09685)."""

    def __init__(self, base: nn.Linear, rank: int = 2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.linspace(-1, 1, rank * base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.a.view(self.b.shape[1], -1).T @ self.b.T

    def merged(self) -> nn.Linear:
        with torch.no_grad():
            self.base.weight += self.b @ self.a.view(self.b.shape[1], -1)
        return self.base


class WithLora(nn.Module):
    """A policy with low-rank weights beside its queries, wrapped as `peft` wraps it."""

    def __init__(self, policy):
        super().__init__()
        self.base_model = policy.requires_grad_(False)
        for layer in policy.model.layers:
            layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_model"), name)

    def forward(self, *arguments, **settings):
        return self.base_model(*arguments, **settings)

    def merge_and_unload(self):
        for layer in self.base_model.model.layers:
            layer.self_attn.q_proj = layer.self_attn.q_proj.merged()
        return self.base_model


def by_hand_lora():
    return WithLora(random_model())


def peft_lora():
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return peft.get_peft_model(random_model(), settings)


ANY_LORA = pytest.mark.parametrize("make", [by_hand_lora, peft_lora])


@ANY_LORA
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_training_a_lora_moves_the_lora_alone(make, algorithm):
    model = make()
    check_sampling(model, TOKENIZER)
    start = {name: x.clone() for name, x in model.state_dict().items()}
    history = small_run(algorithm, model=model, reward=by_length, beta=0.1)
    assert type(history.model) is type(model)
    assert trained(history.model).keys() == trained(model).keys()
    numbers = sum(p.numel() for p in trained(history.model).values())
    assert numbers == 2 * (2 * 64 + 64 * 2)  # two layers, rank 2, 64 to 64
    after = history.model.state_dict()
    moved = {name for name in start if not torch.equal(start[name], after[name])}
    assert moved
    assert moved <= trained(model).keys()
    assert max(history["ratio/max_deviation"]) > 1e-4
    assert all(torch.equal(start[n], x) for n, x in model.state_dict().items())


@ANY_LORA
def test_the_critic_of_a_lora_starts_from_the_merged_body(make):
    policy = make()
    with torch.no_grad():
        for p in trained(policy).values():
            p.copy_(torch.linspace(-0.5, 0.5, p.numel()).view(p.shape))
    start = {name: x.clone() for name, x in policy.state_dict().items()}
    critic = make_critic(policy)
    assert (critic(IDS).logits == 0).all()
    assert all(p.requires_grad for p in critic.parameters())
    assert critic.base_model.state_dict().keys() == (
        random_model().base_model.state_dict().keys()
    )
    hidden = policy(IDS, output_hidden_states=True).hidden_states[-1]
    own = critic.base_model(IDS).last_hidden_state
    plain = random_model().base_model(IDS).last_hidden_state
    assert (own - hidden).abs().max() < ROUNDING
    assert (own - plain).abs().max() > 0.01
    # The policy is still a LoRA, not merged.
    assert all(torch.equal(start[n], x) for n, x in policy.state_dict().items())


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


# The host process


@pytest.fixture
def two_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_a_small_model_works_on_one_thread_and_gives_the_others_back():
    with one_thread(random_model()):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(KeyError), one_thread(random_model()):
        raise KeyError
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_large_model_and_one_on_a_gpu_keep_their_threads(monkeypatch):
    with torch.device("meta"):
        elsewhere = build("tiny", TOKENIZER)
    with one_thread(elsewhere):
        assert torch.get_num_threads() == 2
    monkeypatch.setattr(models, "SMALL", count_parameters(random_model()))
    with one_thread(random_model()):
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_the_users_number_of_threads_is_obeyed(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with one_thread(random_model()):
        assert torch.get_num_threads() == 2


@pytest.mark.parametrize("on", [True, False])
def test_the_progress_bar_comes_back_if_it_was_there(on):
    before = logging.is_progress_bar_enabled()
    switch = {True: logging.enable_progress_bar, False: logging.disable_progress_bar}
    try:
        switch[on]()
        with no_progress_bar():
            assert not logging.is_progress_bar_enabled()
        assert logging.is_progress_bar_enabled() is on
        with pytest.raises(KeyError), no_progress_bar():
            raise KeyError
        assert logging.is_progress_bar_enabled() is on
    finally:
        switch[before]()


def test_loading_shows_no_bar_and_leaves_the_switch(tmp_path, capfd):
    before = logging.is_progress_bar_enabled()
    random_model().save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    capfd.readouterr()
    load(tmp_path)
    assert "it/s" not in "".join(capfd.readouterr())
    assert logging.is_progress_bar_enabled() is before


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
