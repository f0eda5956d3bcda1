"""Layers computed again in the backward pass: the same gradient, bit for bit.

How many activations that saves is in test_memory.py."""

import pytest
import torch

from refimpl import UserError, collect, logprobs
from refimpl.pretrained.logprobs import checkpointed, log_probs, recomputed
from tests.worlds import (
    fixed_noise,
    gpt2,
    llama,
    measured_loss,
    prepared,
    random_model,
    random_moe,
    same_weights,
    small_run,
    with_lora,
)

WHOLE = {"reward": fixed_noise, "minibatches": 1, "micro_batch_size": 16}
WHOLE |= {"allow_on_policy": True}


def lora_model():
    return with_lora(random_model())


@pytest.mark.parametrize("make", [random_model, gpt2, llama, lora_model])
def test_log_probs_and_gradients_are_the_same(make):
    run = prepared(model=make(), dtype="float64", **WHOLE)
    batch, _ = collect(run, 0)
    trained = [p for p in run.model.parameters() if p.requires_grad]
    found = []
    for run.log_probs in (logprobs.log_probs, recomputed(logprobs.log_probs)):
        loss, _ = measured_loss(run, batch)
        found.append(torch.autograd.grad(loss, trained, allow_unused=True))
    for plain, again in zip(*found, strict=True):
        assert (plain is None) == (again is None)
        assert plain is None or (plain - again).abs().max() <= 1e-12
    assert sum(g.abs().sum() for g in found[0] if g is not None) > 1e-3


def test_a_run_is_the_same_bit_for_bit_and_may_go_on_so(tmp_path):
    settings = {"reward": fixed_noise, "beta": 0.1, "dtype": "bfloat16"}
    plain = small_run("ppo", **settings)
    settings["checkpoint_dir"] = tmp_path
    small_run("ppo", rollouts=1, log_probs=logprobs.log_probs, **settings)
    read = recomputed(logprobs.log_probs)
    again = small_run("ppo", log_probs=read, resume=True, **settings)
    assert same_weights(plain.model, again.model)
    assert again["value_loss"] == plain["value_loss"]
    assert not any("forward" in vars(layer) for layer in again.model.modules())


def test_what_it_wraps_says_whether_it_needs_whole_groups():
    assert recomputed(log_probs).by_group
    assert not hasattr(recomputed(logprobs.log_probs), "by_group")


def test_what_cannot_be_computed_again_is_refused():
    with pytest.raises(UserError, match=r"experts .* would be chosen again"):
        small_run(model=random_moe(), reward=fixed_noise, log_probs=recomputed())
    refused = pytest.raises(UserError, match="Sequential has no layers that can be")
    with refused, checkpointed(torch.nn.Sequential(torch.nn.Linear(2, 2))):
        pass
