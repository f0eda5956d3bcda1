"""Layers computed again in the backward pass: the same gradient, fewer activations."""

import pytest
import torch
from transformers import AutoModelForCausalLM, OPTConfig

from refimpl import update as updating
from refimpl.collect import collect
from refimpl.models import checkpointed, lora
from refimpl.scoring import log_probs
from refimpl.update import update
from tests.worlds import (
    EOS,
    PAD,
    TOKENIZER,
    fixed_noise,
    gpt2,
    llama,
    prepared,
    random_model,
    random_moe,
    same_weights,
    small_run,
    whole_loss,
)

WHOLE = {"minibatches": 1, "allow_on_policy": True, "micro_batch_size": 16}


def opt():
    """Its layers draw their dropout themselves, by the flag `training` of their own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(
            OPTConfig(
                vocab_size=len(TOKENIZER),
                hidden_size=32,
                word_embed_proj_dim=32,
                ffn_dim=64,
                num_hidden_layers=2,
                num_attention_heads=2,
                max_position_embeddings=64,
                dropout=0.5,
                init_std=0.2,
                bos_token_id=EOS,
                eos_token_id=EOS,
                pad_token_id=PAD,
            )
        )


def lora_model():
    pytest.importorskip("peft")
    return lora(random_model())


def gradient(run, batch) -> dict:
    with run.recomputed():
        loss = whole_loss(run, batch)
    loss.backward()
    found = {n: p.grad for n, p in run.model.named_parameters() if p.grad is not None}
    run.optimizer.zero_grad(set_to_none=True)
    return found


def count(model, kind: str) -> list:
    """Grows by one whenever a layer of this kind begins.

    The backward pass stops the last one as soon as it has what it needs.
    """
    calls = []
    for layer in model.modules():
        if type(layer).__name__ == kind:
            layer.register_forward_pre_hook(lambda *_: calls.append(None))
    return calls


@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("make", [random_model, gpt2, llama, opt, lora_model])
def test_the_gradient_is_the_same(make, dtype, limit):
    model = make()
    settings = {"model": model, "reward": fixed_noise, "dtype": dtype, **WHOLE}
    plain = prepared(**settings)
    batch, _ = collect(plain, 0)
    expected = gradient(plain, batch)
    found = gradient(prepared(**settings, gradient_checkpointing=True), batch)
    assert found.keys() == expected.keys()
    assert sum(g.abs().sum() for g in expected.values()) > 1e-3
    assert all((found[n] - g).abs().max() <= limit for n, g in expected.items())


@pytest.mark.parametrize("make", [random_model, lora_model])
def test_each_layer_runs_once_more_in_an_update_and_nowhere_else(make):
    settings = {"model": make(), "reward": fixed_noise, **WHOLE}
    counts = []
    for on in (False, True):
        run = prepared(**settings, gradient_checkpointing=on)
        calls = count(run.model, "Qwen3MLP")
        batch, _ = collect(run, 0)
        sampling = len(calls)
        update(run, batch, 0)
        counts.append((sampling, len(calls) - sampling))
    (sampling, plain), (same, again) = counts
    assert (plain, again) == (2, 4)  # two layers, one micro-batch
    assert sampling == same > 2


def test_what_is_kept_for_the_backward_pass_is_far_less():
    run = prepared(model=llama(), reward=fixed_noise)
    rollout = collect(run, 0)[0].rollout

    def kept() -> int:
        sizes = {}

        def pack(x):
            sizes[x.data_ptr()] = x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            hidden = run.model.model(rollout.ids, use_cache=False).last_hidden_state
        weights = {p.data_ptr() for p in run.model.parameters()}
        assert hidden.requires_grad
        return sum(n for where, n in sizes.items() if where not in weights)

    plain = kept()
    with checkpointed(run.model):
        assert kept() < plain / 4


def test_a_run_is_the_same_bit_for_bit_and_ends_as_it_began():
    settings = {"reward": fixed_noise, "beta": 0.1}
    plain = small_run("ppo", **settings)
    again = small_run("ppo", **settings, gradient_checkpointing=True)
    assert same_weights(plain.model, again.model)
    assert again["value_loss"] == plain["value_loss"]
    assert not any("forward" in vars(layer) for layer in again.model.modules())


def test_the_critic_is_computed_again_too():
    run = prepared("ppo", reward=fixed_noise, gradient_checkpointing=True, **WHOLE)
    batch, _ = collect(run, 0)
    calls = count(run.critic, "Qwen3MLP")
    update(run, batch, 0)
    assert len(calls) == 4


def test_bfloat16_is_computed_again_in_bfloat16():
    plain, again = (
        small_run(dtype="bfloat16", reward=fixed_noise, gradient_checkpointing=on)
        for on in (False, True)
    )
    assert same_weights(plain.model, again.model)


def test_it_may_be_switched_on_when_a_run_goes_on(tmp_path):
    whole = small_run(reward=fixed_noise)
    small_run(reward=fixed_noise, rollouts=1, checkpoint_dir=tmp_path)
    again = {"checkpoint_dir": tmp_path, "resume": True, "reward": fixed_noise}
    history = small_run(**again, gradient_checkpointing=True)
    assert same_weights(history.model, whole.model)


def test_an_update_that_fails_leaves_the_layers_as_they_were(monkeypatch):
    run = prepared(reward=fixed_noise, gradient_checkpointing=True)
    batch, _ = collect(run, 0)

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(updating, "_loss", fail)
    with pytest.raises(KeyboardInterrupt):
        update(run, batch, 0)
    assert not any("forward" in vars(layer) for layer in run.model.modules())


def test_a_mixture_of_experts_is_refused(monkeypatch):
    monkeypatch.setattr("refimpl.collect.sample", None)
    with pytest.raises(ValueError, match=r"experts .* would be chosen anew"):
        small_run(model=random_moe(), gradient_checkpointing=True)


def test_a_model_without_such_layers_is_refused():
    layers = torch.nn.Sequential(torch.nn.Linear(2, 2))
    refused = pytest.raises(ValueError, match="Sequential has no layers that can be")
    with refused, checkpointed(layers):
        pass


def test_log_probs_are_the_same_inside():
    run = prepared(reward=fixed_noise)
    rollout = collect(run, 0)[0].rollout
    expected, _ = log_probs(run.model, rollout)
    with checkpointed(run.model):
        found, _ = log_probs(run.model, rollout)
    assert torch.equal(found, expected)
