"""Policies, references and critics: presets from `transformers` configs, or your own.

A policy is any `transformers` causal LM; a critic is the same body with one number
per token on top (`AutoModelForTokenClassification`, one label). Both save and load
with `save_pretrained` and `from_pretrained`.
"""

import contextlib
import copy
import os
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3MoeConfig,
)

from refimpl.checks import Seed, UserError, guarded, nearest
from refimpl.seeds import salted

if TYPE_CHECKING:
    Model: TypeAlias = PreTrainedModel
else:  # a wrapped one too, as peft's
    Model = nn.Module

Preset = Literal["tiny", "tiny-moe", "small", "small-moe"]


def _sizes(width: int, layers: int, heads: int, **feed_forward: int | bool) -> dict:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": width // heads,
        **feed_forward,
    }


def _experts(width: int, n: int, visited: int) -> dict:
    return {
        "moe_intermediate_size": width,
        "num_experts": n,
        "num_experts_per_tok": visited,
        "norm_topk_prob": True,
    }


PRESETS: dict[str, dict] = {
    # 0.1 M parameters: seconds on a laptop CPU.
    "tiny": _sizes(64, 2, 4, intermediate_size=192),
    # 0.2 M, of which a token uses half: 8 experts in both layers, top 2.
    "tiny-moe": _sizes(64, 2, 4, **_experts(64, 8, 2)),
    # 14 M: for a GPU.
    "small": _sizes(384, 8, 6, intermediate_size=1024),
    # 43 M, for a GPU: 16 experts, top 4.
    "small-moe": _sizes(384, 8, 6, **_experts(256, 16, 4)),
}


@guarded
def build(preset: str, tokenizer: PreTrainedTokenizerBase, seed: Seed = 0):
    """A freshly initialised Qwen3 or Qwen3-MoE of the preset, tied embeddings, float32.

    The global random generator is left as it was. Raises `UserError` on an unknown
    preset.
    """
    if preset not in PRESETS:
        raise UserError(
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


@guarded
def check_pair(model: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `UserError` if the tokenizer can name a token that the model lacks."""
    known = vocabulary(model)
    if len(tokenizer) > known:
        raise UserError(
            f"the tokenizer has {len(tokenizer)} tokens, the model only {known}: "
            "load both from the same place, or model.resize_token_embeddings(...)"
        )
    if tokenizer.eos_token_id is None:
        raise UserError(
            "the tokenizer has no eos_token: a response could not end; set "
            "tokenizer.eos_token to the token that ends an answer"
        )


def vocabulary(model: Model) -> int:
    """How many tokens the model knows; `UserError` if it is no language model."""
    if not hasattr(model, "get_input_embeddings"):
        raise UserError(
            "model must be a causal language model of transformers, got "
            f"{type(model).__name__}"
        )
    return model.get_input_embeddings().weight.shape[0]


@guarded
def make_critic(policy: Model, seed: Seed = 0) -> PreTrainedModel:
    """A critic V(q, o_<t) whose body starts as a copy of the policy's, its head at 0.

    A head of zeros makes the first advantages plain returns instead of noise. All its
    weights are trained, also where some of the policy's are frozen. Raises `UserError`
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
            raise UserError(
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

    Weights that need no gradient stay so: frozen layers, the base of a LoRA. Their
    memory is that of `model`: they are read, never written. Raises `UserError` if no
    weight needs a gradient.
    """
    policy = copied(
        model, [p for p in model.parameters() if not p.requires_grad]
    ).eval()
    if not any(p.requires_grad for p in policy.parameters()):
        raise UserError(
            "no weight of the model needs a gradient, so nothing could be trained; "
            "call model.requires_grad_(True), or unfreeze the part you want to train"
        )
    return policy


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that takes no gradient, as π_ref; what `model` keeps frozen, it shares."""
    frozen = [p for p in model.parameters() if not p.requires_grad]
    return copied(model, frozen).eval().requires_grad_(False)


def copied(model: Model, shared: Collection[nn.Parameter]) -> Model:
    """A deep copy, but for the memory of `shared`; none of those needs a gradient.

    The parameters themselves are new, so that `.to(torch.float64)` gives the copy
    other memory and leaves `model` as it was. Quantised ones are copied whole.
    """
    plain = [p for p in shared if type(p) is nn.Parameter]
    memo = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in plain}
    return copy.deepcopy(model, memo)


def off_is_start(model: Model) -> bool:
    """Whether `peft`'s adapter, switched off, is the policy that `model` is now.

    So it is if nothing but A and B is trained and every B is 0, as at first. It is then
    the reference of the whole run, at no memory.
    """
    if not hasattr(model, "disable_adapter"):
        return False
    weights = dict(model.named_parameters())
    trained = [name for name, p in weights.items() if p.requires_grad]
    return all(".lora_A." in n or ".lora_B." in n for n in trained) and not any(
        p.any() for name, p in weights.items() if ".lora_B." in name
    )


def frozen_names(model: Model) -> set[str]:
    """What `model.state_dict()` calls the parameters that need no gradient."""
    every = model.named_parameters(remove_duplicate=False)
    return {name for name, p in every if not p.requires_grad}


def fingerprint(model: Model, each: int = 64) -> Tensor:
    """Some numbers of each frozen weight, by which another base is recognised."""
    frozen = [p.detach() for p in model.parameters() if not p.requires_grad]
    seen = [p.flatten()[:: 1 + p.numel() // each].cpu().double() for p in frozen]
    return torch.cat(seen) if seen else torch.zeros(0)


def weights(model: Model) -> Float[Tensor, " P"]:
    """All trained weights in one row, copied."""
    return torch.cat([p.detach().flatten() for p in trained(model)])


def trained(model: Model) -> list[nn.Parameter]:
    """The weights that take a gradient."""
    return [p for p in model.parameters() if p.requires_grad]


def wide(x: Tensor) -> Tensor:
    """Half precision as float32, anything else as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def precision(model: Model, dtype: str) -> contextlib.AbstractContextManager:
    """Autocast for bfloat16, nothing otherwise."""
    if dtype != "bfloat16":
        return contextlib.nullcontext()
    return torch.autocast(model.device.type, torch.bfloat16)


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
    """'cpu', 'cuda', 'cuda:1', 'mps'. Raises `UserError` if it is not there."""
    try:
        device = torch.device(str(name))
    except RuntimeError as error:
        raise UserError(f"unknown device {name!r}: 'cpu', 'cuda' or 'mps'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device 'cuda' was asked for, but torch sees no CUDA device; use 'cpu', or "
            "install a CUDA build of torch (README, 'Using a GPU')"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device {name!r} was asked for, but torch sees only "
            f"{torch.cuda.device_count()} CUDA devices, numbered from 0"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device 'mps' was asked for, but torch sees none; use 'cpu'")
    return device
