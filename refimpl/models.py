"""Policies, references and critics: presets from `transformers` configs, or your own.

A policy is any `transformers` causal LM; a critic is the same body with one number
per token on top (`AutoModelForTokenClassification`, one label). Both save and load
with `save_pretrained` and `from_pretrained`.
"""

import contextlib
import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.utils import logging

from refimpl.arguments import guarded
from refimpl.dice import salted
from refimpl.settings import Seed, nearest

if TYPE_CHECKING:
    Model: TypeAlias = PreTrainedModel
else:  # a wrapped one too, as peft's
    Model = nn.Module

Preset = Literal["tiny", "tiny-moe", "small", "small-moe"]

PRESETS: dict[str, dict] = {
    # 0.1 M parameters: seconds on a laptop CPU.
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
    },
    # 0.2 M parameters, of which a token uses half: 8 experts in both layers, top 2.
    "tiny-moe": {
        "hidden_size": 64,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    },
    # 14 M parameters: for a GPU.
    "small": {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "head_dim": 64,
    },
    # 43 M parameters, for a GPU: 16 experts, top 4.
    "small-moe": {
        "hidden_size": 384,
        "moe_intermediate_size": 256,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "head_dim": 64,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
    },
}


@guarded
def build(preset: str, tokenizer: PreTrainedTokenizerBase, seed: Seed = 0):
    """A freshly initialised Qwen3 or Qwen3-MoE of the preset, tied embeddings, float32.

    The global random generator is left as it was. Raises `ValueError` on an unknown
    preset.
    """
    if preset not in PRESETS:
        raise ValueError(
            f"unknown preset {preset!r}{nearest(preset, PRESETS)}; "
            f"one of: {', '.join(PRESETS)}"
        )
    kind = Qwen3MoeConfig if "num_experts" in PRESETS[preset] else Qwen3Config
    config = kind(
        **PRESETS[preset],
        vocab_size=len(tokenizer),
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(salted(seed))  # not that of a GPU
        return AutoModelForCausalLM.from_config(config)


@contextlib.contextmanager
def no_progress_bar() -> Iterator[None]:
    """Without transformers' bar: one small file needs none."""
    before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            logging.enable_progress_bar()


@guarded
def load(path: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Any causal LM and its tokenizer, by folder or by name on the Hugging Face hub.

    Raises `ValueError` if there is nothing there, or if the two do not fit together.
    """
    try:
        with no_progress_bar():
            model = AutoModelForCausalLM.from_pretrained(path)
        if Path(path).is_dir() and not (Path(path) / "tokenizer_config.json").exists():
            raise ValueError("There is a model, but no tokenizer was saved beside it.")
        tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as error:  # transformers raises many kinds for a damaged file
        said = " ".join(str(error).split())[:300]
        raise ValueError(
            f"no causal language model with a tokenizer at {str(path)!r}: expected a "
            "folder written by save_pretrained, or a name on the Hugging Face hub "
            f"(which needs a network). {said}"
        ) from error
    check_pair(model, tokenizer)
    return model, tokenizer


@guarded
def check_pair(model: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `ValueError` if the tokenizer can name a token that the model lacks."""
    known = vocabulary(model)
    if len(tokenizer) > known:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, the model only {known}: "
            "load both from the same place, or model.resize_token_embeddings(...)"
        )
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no eos_token: a response could not end")


def vocabulary(model: Model) -> int:
    """How many tokens the model knows; `ValueError` if it is no language model."""
    if not hasattr(model, "get_input_embeddings"):
        raise ValueError(
            "model must be a causal language model of transformers, got "
            f"{type(model).__name__}"
        )
    return model.get_input_embeddings().weight.shape[0]


@guarded
def make_critic(policy: Model, seed: Seed = 0) -> PreTrainedModel:
    """A critic V(q, o_<t) whose body starts as a copy of the policy's, its head at 0.

    A head of zeros makes the first advantages plain returns instead of noise. All its
    weights are trained, also where some of the policy's are frozen. Raises `ValueError`
    if `transformers` has no such model of this kind.
    """
    if hasattr(policy, "merge_and_unload"):  # peft's: the critic has no LoRA
        policy = copy.deepcopy(policy).merge_and_unload()
    config = copy.deepcopy(policy.config)
    config.num_labels = 1
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(salted(seed))  # not that of a GPU
        try:
            critic = AutoModelForTokenClassification.from_config(config)
        except ValueError as error:
            raise ValueError(
                f"no critic can be made of {type(policy).__name__}: transformers has "
                "no token-classification model of this kind; take a method without a "
                "critic, or another model"
            ) from error
    critic.base_model.load_state_dict(policy.base_model.state_dict())
    head = [m for m in critic.children() if isinstance(m, nn.Linear)][-1]
    nn.init.zeros_(head.weight)
    if head.bias is not None:
        nn.init.zeros_(head.bias)
    return critic.to(policy.device, policy.dtype).eval()  # no dropout


def trainable_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy to train, in eval mode: dropout would make π_θ differ from the sampler.

    Weights that need no gradient stay so: frozen layers, the base of a LoRA. Raises
    `ValueError` if none needs one.
    """
    copied = copy.deepcopy(model).eval()
    if not any(p.requires_grad for p in copied.parameters()):
        raise ValueError(
            "no weight of the model needs a gradient, so nothing could be trained; "
            "call model.requires_grad_(True), or unfreeze the part you want to train"
        )
    return copied


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """π_ref: a copy that takes no gradient."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def count_parameters(model: nn.Module) -> int:
    """Numbers in the model, frozen ones too; tied ones counted once."""
    return sum(p.numel() for p in model.parameters())


SMALL = 10_000_000  # parameters


@contextlib.contextmanager
def one_thread(model: PreTrainedModel) -> Iterator[None]:
    """One torch thread while a small model works on the CPU; then as before.

    For models this small two threads gain nothing. They wait for each other by
    spinning, and come to a crawl when another program wants a core. $OMP_NUM_THREADS,
    if it is set, is obeyed.
    """
    before = torch.get_num_threads()
    on_cpu = model.device.type == "cpu" and not os.environ.get("OMP_NUM_THREADS")
    if on_cpu and count_parameters(model) < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pick_device(name: str | torch.device) -> torch.device:
    """'cpu', 'cuda', 'cuda:1', 'mps'. Raises `ValueError` if it is not there."""
    try:
        device = torch.device(str(name))
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}: 'cpu', 'cuda' or 'mps'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device 'cuda' was asked for, but torch sees no CUDA device; use 'cpu', or "
            "install a CUDA build of torch (README, 'Using a GPU')"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {name!r} was asked for, but torch sees only "
            f"{torch.cuda.device_count()} CUDA devices, numbered from 0"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device 'mps' was asked for, but torch sees none; use 'cpu'")
    return device
