"""LoRA: what is trained, what π_ref is, what is copied, saved, merged, refused."""

import json
import shutil
import sys

import pytest
import torch

from refimpl import UserError, checkpoint, collect, sample
from refimpl.__main__ import main
from refimpl.models import trainable_copy
from refimpl.pretrained.loading import ADAPTER, load
from refimpl.pretrained.logprobs import log_probs
from refimpl.pretrained.lora import lora, merged
from tests.worlds import (
    PROMPTS,
    ROUNDING,
    TOKENIZER,
    disturb,
    fixed_noise,
    gpt2,
    largest_difference,
    needs,
    prepared,
    random_model,
    renamed,
    same_weights,
    small_run,
    warm_model,
)

peft = needs("peft")

IDS = torch.tensor([TOKENIZER("1+2+3+4=")["input_ids"]])


def trained(model) -> dict:
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def pointers(model) -> set[int]:
    return {p.data_ptr() for p in model.parameters()}


def moved(model, seed=0):
    """A LoRA that has learned something: B is no longer 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in trained(model).items():
            if "lora_B" in name:
                p.copy_(0.02 * torch.randn(p.shape, generator=generator))
    return model


def test_at_first_the_function_is_unchanged_and_the_model_lends_its_memory():
    model = random_model()
    adapted = lora(model, r=3)
    assert torch.equal(adapted(IDS).logits, model(IDS).logits)
    # In each layer q, k, v, o: 64 → 64; gate and up: 64 → 192; down: 192 → 64.
    by_hand = 2 * 3 * (4 * (64 + 64) + 3 * (64 + 192))
    assert sum(p.numel() for p in trained(adapted).values()) == by_hand
    assert all(".lora_A." in n or ".lora_B." in n for n in trained(adapted))
    assert same_weights(model, random_model()) and pointers(model) < pointers(adapted)
    assert all(p.requires_grad for p in model.parameters())
    assert not any("lora" in name for name, _ in model.named_modules())


def test_the_change_is_alpha_over_r_times_b_a():
    adapted = moved(lora(warm_model(), r=4, alpha=6, target_modules=["down_proj"]))
    weights = dict(adapted.named_parameters())
    name = "base_model.model.model.layers.1.mlp.down_proj."
    a, b = (weights[f"{name}lora_{x}.default.weight"] for x in "AB")
    expected = weights[name + "base_layer.weight"] + 1.5 * b @ a
    whole = merged(adapted)
    gap = whole.model.layers[1].mlp.down_proj.weight - expected
    assert gap.abs().max() < 1e-6
    assert (whole(IDS).logits - adapted(IDS).logits).abs().max() < ROUNDING
    assert (whole(IDS).logits - warm_model()(IDS).logits).abs().max() > 0.01


def test_the_seed_and_the_salt_decide_a(monkeypatch):
    model, before = random_model(), torch.get_rng_state()
    first = lora(model, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert same_weights(first, lora(model, seed=5))
    assert not same_weights(first, lora(model, seed=6))
    monkeypatch.setenv("REFIMPL_SALT", "3")
    assert not same_weights(first, lora(model, seed=5))


def test_training_copies_the_adapter_alone_and_moves_nothing_of_the_callers():
    model = random_model()
    adapted = lora(model, r=2)
    start = {n: p.clone() for n, p in adapted.named_parameters()}
    copy = trainable_copy(adapted)
    assert pointers(copy) & pointers(adapted) == pointers(model)
    assert len(pointers(copy) - pointers(adapted)) == len(trained(adapted))
    history = small_run(model=adapted, reward=fixed_noise, beta=0.1)
    assert pointers(history.model) & pointers(model) == pointers(model)
    assert all(torch.equal(p, start[n]) for n, p in adapted.named_parameters())
    assert (history.model(IDS).logits - model(IDS).logits).abs().max() > 1e-3
    assert min(history["ratio/max_deviation"]) > 1e-4
    whole = merged(history.model)
    assert largest_difference(whole, model) > 1e-5
    assert all(p.requires_grad for p in whole.parameters())
    run = prepared(model=adapted, dtype="float64")  # which is other memory
    assert {p.dtype for p in run.model.parameters()} == {torch.float64}
    assert {p.dtype for p in adapted.parameters()} == {torch.float32}
    disturb(run.model, 1.0)
    assert same_weights(model, random_model())


@pytest.mark.parametrize("learned", [False, True])
def test_the_reference_is_the_policy_as_it_was(learned):
    """A fresh LoRA's is its base. Only the adapter is copied for it."""
    adapted = lora(random_model(), r=2)
    adapted = moved(adapted) if learned else adapted
    run = prepared(model=adapted, reward=fixed_noise, beta=0.1, kl_in="reward")
    new = pointers(run.reference) - pointers(run.model)
    assert len(new) == len(trained(adapted))
    assert not any(p.requires_grad for p in run.reference.parameters())
    moved(run.model, seed=1)
    batch, _ = collect(run, 0)
    expected, _ = log_probs(adapted, batch.rollout)
    assert (batch.ref_logp - expected).abs().max() < ROUNDING
    base, _ = log_probs(random_model(), batch.rollout)
    assert bool((expected - base).abs().max() > 1e-2) is learned
    now, _ = log_probs(run.model, batch.rollout)
    assert (batch.old_logp - now).abs().max() < ROUNDING
    assert (now - expected).abs().max() > 1e-2


def test_a_resumed_run_is_the_same_and_its_file_holds_no_base(tmp_path):
    """It keeps the reference that it began with, a LoRA that has learned something.
    Another base, another rank and a full policy are refused, and stay as they were."""
    model = moved(lora(random_model()))
    settings = {"model": model, "reward": fixed_noise, "beta": 0.5}
    whole = small_run(**settings)
    small_run(**settings, rollouts=1, checkpoint_dir=tmp_path)
    state = checkpoint.load(tmp_path)
    assert state["model"].keys() == trained(whole.model).keys()
    assert state["reference"].keys() == state["model"].keys()
    settings |= {"checkpoint_dir": tmp_path, "resume": True}
    full, refused = random_model(seed=1), "another shape, or with other frozen weights"
    for other in (lora(full), lora(random_model(), r=8), full):
        with pytest.raises(UserError, match=refused):
            small_run(**settings | {"model": other})
    assert same_weights(full, random_model(seed=1))
    history = small_run(**settings)
    assert same_weights(history.model, whole.model)
    assert (history["loss"], history["kl"]) == (whole["loss"], whole["kl"])


@pytest.fixture
def policy(tmp_path):
    folder = tmp_path / "policy"
    random_model().save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


def words(policy, *more) -> list[str]:
    small = {"prompts_per_rollout": 4, "group_size": 4, "max_new_tokens": 8}
    small |= {"minibatches": 2, "eval_problems": 4, "learning_rate": 1e-3}
    sets = [word for name, x in small.items() for word in (f"--{name}", x)]
    command = ["train", "--algorithm", "grpo", "--rollouts", "2", "--model", policy]
    return [str(word) for word in [*command, *sets, *more]]


def test_the_command_line_trains_saves_loads_and_merges(policy, tmp_path, monkeypatch):
    # The arithmetic world pays an untrained policy nothing.
    monkeypatch.setattr("refimpl.tasks.Arithmetic.reward", staticmethod(fixed_noise))
    monkeypatch.chdir(tmp_path)
    asked = ["--lora", "r=2", "target_modules=q_proj,down_proj", "--save"]
    assert main(words("policy", *asked, "adapter")) == 0
    assert main(words("policy", *asked, "merged", "--merge")) == 0
    settings = json.loads((tmp_path / "adapter" / ADAPTER).read_text())
    assert (settings["r"], settings["lora_alpha"]) == (2, 32)
    assert set(settings["target_modules"]) == {"q_proj", "down_proj"}
    monkeypatch.chdir(policy)  # the base is found from anywhere
    adapted, tokenizer = load("../adapter")
    whole, _ = load("../merged")
    assert type(whole) is type(random_model())
    assert not (tmp_path / "merged" / ADAPTER).exists()
    shutil.copytree("../adapter", "../over")
    over = ["../over", "--merge", "--overwrite"]
    assert main(words("../policy", *asked, *over)) == 0
    assert same_weights(load("../over")[0], whole)  # not with the old adapter on top
    gap = (adapted(IDS).logits - whole(IDS).logits).abs().max()
    assert gap < ROUNDING
    assert (whole(IDS).logits - random_model()(IDS).logits).abs().max() > 10 * gap
    assert tokenizer(PROMPTS)["input_ids"] == TOKENIZER(PROMPTS)["input_ids"]
    # An adapter that was loaded is trained on.
    assert main(words("../adapter", "--save", "../further")) == 0
    further, _ = load("../further")
    assert trained(further).keys() == trained(adapted).keys()
    assert not same_weights(further, adapted)
    tokenizer.chat_template = "{{ 7 }}"  # an adapter may bring its own
    tokenizer.save_pretrained("../adapter")
    assert load("../adapter")[1].chat_template == "{{ 7 }}"
    renamed(tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(UserError, match=r"the LoRA in .*missing adapter keys"):
        load(tmp_path / "adapter")
    policy.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"the LoRA in .* its base model, .*policy"):
        load(tmp_path / "adapter")


@pytest.mark.parametrize("target", ["", [3]])
def test_what_no_adapter_can_be_put_on_is_refused(target, monkeypatch):
    with pytest.raises(UserError, match="target_modules"):
        lora(random_model(), target_modules=target)
    with pytest.raises(UserError, match=r"no linear layer 'proj'; it has .*q_proj"):
        lora(random_model(), target_modules="q_proj, proj")
    with pytest.raises(UserError, match="has a LoRA already"):
        lora(lora(random_model()))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r'pip install "refimpl\[real\]"'):
        lora(random_model())


def test_a_convolution_of_gpt2_is_a_linear_layer_too_and_dropout_stays_off():
    """peft's wrapper is a module of its own, and new modules are in training mode."""
    assert len(trained(lora(gpt2(), target_modules="c_attn"))) == 4
    with pytest.raises(UserError, match="c_attn, c_fc, c_proj, lm_head"):
        lora(gpt2(), target_modules="q_proj")
    adapted = lora(gpt2(), r=2)  # which has dropout
    assert not any(module.training for module in adapted.modules())
    adapted.base_model.training = True  # and nothing else
    sample(adapted, TOKENIZER, PROMPTS, max_new_tokens=2)
    assert [m for m in adapted.modules() if m.training] == [adapted.base_model]
