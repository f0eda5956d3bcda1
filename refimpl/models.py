"""Policies, references and critics, from presets or from your own models.

A policy is any `transformers` causal LM; a critic is the same body with one number
per token on top (`AutoModelForTokenClassification`, one label). Both save and load
with `save_pretrained` and `from_pretrained`.
"""

import contextlib
import copy
import inspect
import os
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3MoeConfig,
)

from refimpl.config import PRESETS, Preset
from refimpl.seeds import salted
from refimpl.validation import Seed, UserError, guarded

if TYPE_CHECKING:
    Model: TypeAlias = PreTrainedModel
else:  # also a wrapped model, such as peft's
    Model = nn.Module


def cache_name(model: Model) -> str:
    """Return the name of forward's cache argument, which transformers 5.24 changed."""
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    new = "cache" in inspect.signature(bare.forward).parameters
    return "cache" if new else "past_key_values"


@guarded
def build(preset: Preset, tokenizer: PreTrainedTokenizerBase, seed: Seed = 0):
    """Initialise the preset's Qwen3 or Qwen3-MoE, with tied embeddings, in float32.

    The state of the global random generator does not change.
    """
    width, layers, heads, feed_forward, experts, visited = PRESETS[preset]
    config = (Qwen3MoeConfig if experts else Qwen3Config)(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=width // heads,
        intermediate_size=feed_forward,
        vocab_size=len(tokenizer),
        max_position_embeddings=128,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    if experts:
        config.moe_intermediate_size = feed_forward
        config.num_experts, config.num_experts_per_tok = experts, visited
        config.norm_topk_prob = True
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(salted(seed))  # the CPU's generator
        return AutoModelForCausalLM.from_config(config)


@guarded
def check_pair(model: Model, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `UserError` if a tokenizer has tokens that the model lacks, or no EOS."""
    if len(tokenizer) > (size := vocabulary(model)):
        raise UserError(
            f"the tokenizer has {len(tokenizer)} tokens, the model only {size}: "
            "load both from the same place, or call model.resize_token_embeddings(...)"
        )
    if tokenizer.eos_token_id is None:
        raise UserError(
            "the tokenizer has no eos_token, which marks the end of a text; set "
            "tokenizer.eos_token to the token that ends an answer"
        )


def vocabulary(model: Model) -> int:
    """Return the vocabulary's size. Raises `UserError` if `model` has none."""
    if getattr(model, "get_output_embeddings", bool)() in (None, False):
        raise UserError(
            "model must be a causal language model of transformers, got "
            f"{type(model).__name__}"
        )
    return model.get_input_embeddings().weight.shape[0]


@guarded
def make_critic(policy: Model, fixed: Collection[str] = ()) -> PreTrainedModel:
    """Make a critic V(q, o_<t): a copy of the policy's body with a new head of zeros.

    With a head of zeros the first advantages are returns instead of noise. All weights
    of the critic are trained, even those that are frozen in the policy, except those
    whose name contains an entry of `fixed` (such as "attn"). Raises `UserError` if no
    name does, and `ValueError` if `transformers` has no such model of this kind.
    """
    if hasattr(policy, "merge_and_unload"):  # peft's: the critic has no LoRA
        policy = copy.deepcopy(policy).merge_and_unload()
    config = copy.deepcopy(policy.config)
    config.num_labels = 1
    with torch.random.fork_rng(devices=[]):  # its weights are overwritten
        critic = AutoModelForTokenClassification.from_config(config)
    critic.base_model.load_state_dict(policy.base_model.state_dict())
    head = [m for m in critic.children() if isinstance(m, nn.Linear)][-1]
    for p in head.parameters():
        nn.init.zeros_(p)
    for part in fixed:
        named = [p for name, p in critic.named_parameters() if part in name]
        if not named:
            raise UserError(f"no weight of the critic has {part!r} in its name")
        for p in named:
            p.requires_grad_(False)
    return critic.to(policy.device, policy.dtype).eval()  # no dropout


def routers(model: nn.Module) -> list[nn.Module]:
    """Return the routers of `model`, first layer first; none if it is dense."""
    return [m for m in model.modules() if type(m).__name__.endswith("Router")]


def is_moe(model: nn.Module) -> bool:
    return bool(routers(model))


def trained(model: Model) -> list[nn.Parameter]:
    """Return the weights that require a gradient."""
    return [p for p in model.parameters() if p.requires_grad]


def frozen(model: Model) -> list[nn.Parameter]:
    """Return the weights without a gradient, such as frozen layers or a LoRA's base."""
    return [p for p in model.parameters() if not p.requires_grad]


def trainable_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model for training, in eval mode: with dropout π_θ is not the sampler's.

    Frozen weights stay frozen and share the memory of `model`. Raises `UserError` if no
    weight requires a gradient.
    """
    if not trained(model):
        raise UserError(
            "no weight of the model needs a gradient, so nothing could be trained; "
            "call model.requires_grad_(True), or unfreeze the part you want to train"
        )
    return copied(model, frozen(model)).eval()


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model without gradients, as π_ref; frozen weights share their memory."""
    return copied(model, frozen(model)).eval().requires_grad_(False)


def copied(model: Model, shared: Collection[nn.Parameter]) -> Model:
    """Copy a model deeply, except for the memory of `shared`, which must be frozen.

    The parameter objects are new, so that `.to(torch.float64)` gives the copy memory of
    its own and does not change `model`. Quantised parameters are copied in full.
    """
    plain = [p for p in shared if type(p) is nn.Parameter]
    memo = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in plain}
    return copy.deepcopy(model, memo)


def weights(model: Model) -> Float[Tensor, " P"]:
    """Return a copy of all trained weights as one vector."""
    return torch.cat([p.detach().flatten() for p in trained(model)])


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precision to float32, and leave anything else as it is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


SDPA = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""PyTorch's attention kernels without cuDNN's. Some GPUs prefer that one in bfloat16,
but it makes a plan for every length: a rollout took three times as long on an H200."""


@contextlib.contextmanager
def precision(model: Model, dtype: str) -> Iterator[None]:
    """Autocast to bfloat16 if `dtype` is that, and use the attention kernels `SDPA`."""
    kind, on = model.device.type, dtype == "bfloat16"
    with torch.autocast(kind, torch.bfloat16, enabled=on), sdpa_kernel(SDPA):
        yield


@contextlib.contextmanager
def cast_once(model: Model) -> Iterator[None]:
    """Cast linear weights to autocast's type once, instead of once per token.

    The results are the same, and sampling takes 10 % less time.
    """
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    owned = [(m, name, p) for m in linear for name, p in m.named_parameters()]
    replaced = [(m, name, p) for m, name, p in owned if p.dtype == torch.float32]
    try:
        for module, name, p in replaced:
            cast = p.detach().to(torch.get_autocast_dtype(model.device.type))
            setattr(module, name, nn.Parameter(cast, requires_grad=False))
        yield
    finally:
        for module, name, p in replaced:
            setattr(module, name, p)


def count_parameters(model: nn.Module) -> int:
    """Count the model's weights, including frozen ones; tied weights count once."""
    return sum(p.numel() for p in model.parameters())


SMALL = 10_000_000  # parameters


@contextlib.contextmanager
def one_thread(model: PreTrainedModel) -> Iterator[None]:
    """Use one torch thread inside the block, for a small model on the CPU.

    Two threads are no faster there. They wait for each other by spinning, and become
    very slow when another program needs a core. $OMP_NUM_THREADS, if set, decides.
    """
    before = torch.get_num_threads()
    on_cpu = model.device.type == "cpu" and not os.environ.get("OMP_NUM_THREADS")
    if on_cpu and count_parameters(model) < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
