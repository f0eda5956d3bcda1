"""Policies, references and critics: presets from `transformers` configs, or your own.

A policy is any `transformers` causal LM; a critic is the same body with one number
per token on top (`AutoModelForTokenClassification`, one label). Both save and load
with `save_pretrained` and `from_pretrained`.
"""

import contextlib
import copy
import functools
import json
import os
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from refimpl import moe
from refimpl.arguments import guarded
from refimpl.dice import salted
from refimpl.real.pretrained import PACKAGED, resolve
from refimpl.settings import Count, Positive, Seed, nearest, shown

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

    A name in `pretrained.PACKAGED` (`smollm2`) is a model that `python -m refimpl
    fetch` has put into the cache, unless there is a folder of that name.
    A folder with a LoRA in it (`peft`'s `save_pretrained`) gives the base model with
    that adapter, to be trained on. Raises `ValueError` if there is nothing there, or if
    the two do not fit together.
    """
    name, path = str(path), resolve(path)
    if (Path(path) / ADAPTER).exists():
        return _load_adapter(Path(path))
    try:
        with no_progress_bar():
            model = AutoModelForCausalLM.from_pretrained(path)
        if Path(path).is_dir() and not (Path(path) / "tokenizer_config.json").exists():
            raise ValueError("There is a model, but no tokenizer was saved beside it.")
        tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as error:  # transformers raises many kinds for a damaged file
        said = " ".join(str(error).split())[:300]
        mend = nearest(name, PACKAGED) or "."
        if name in PACKAGED:
            mend = f"; remove it, then run `python -m refimpl fetch {name}`."
        raise ValueError(
            f"no causal language model with a tokenizer at {str(path)!r}: expected a "
            "folder written by save_pretrained, or a name on the Hugging Face hub "
            f"(which needs a network){mend} {said}"
        ) from error
    check_pair(model, tokenizer)
    return model, tokenizer


ADAPTER = "adapter_config.json"


def _load_adapter(folder: Path) -> tuple[Model, PreTrainedTokenizerBase]:
    """The base model that the adapter names, with the adapter on it."""
    peft = _peft()
    try:
        base = json.loads((folder / ADAPTER).read_text())["base_model_name_or_path"]
        model, tokenizer = load(base)
        if (folder / "tokenizer_config.json").exists():
            tokenizer = AutoTokenizer.from_pretrained(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of peft about transformers
            model = peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
    except Exception as error:
        said = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{str(folder)!r} holds a LoRA, which could not be put onto its base model "
            f"(base_model_name_or_path in {ADAPTER} names it): {said}"
        ) from error
    check_pair(model, tokenizer)
    return model.eval(), tokenizer


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
        raise ValueError(
            "the tokenizer has no eos_token: a response could not end; set "
            "tokenizer.eos_token to the token that ends an answer"
        )


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

    Weights that need no gradient stay so: frozen layers, the base of a LoRA. Their
    memory is that of `model`: they are read, never written. Raises `ValueError` if no
    weight needs a gradient.
    """
    copied = _copy(model, [p for p in model.parameters() if not p.requires_grad]).eval()
    if not any(p.requires_grad for p in copied.parameters()):
        raise ValueError(
            "no weight of the model needs a gradient, so nothing could be trained; "
            "call model.requires_grad_(True), or unfreeze the part you want to train"
        )
    return copied


def frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """π_ref: a copy that takes no gradient; what `model` keeps frozen, it shares."""
    frozen = [p for p in model.parameters() if not p.requires_grad]
    return _copy(model, frozen).eval().requires_grad_(False)


def _copy(model: Model, shared: Collection[nn.Parameter]) -> Model:
    """A deep copy, but for the memory of `shared`; none of those needs a gradient.

    The parameters themselves are new, so that `.to(torch.float64)` gives the copy
    other memory and leaves `model` as it was. Quantised ones are copied whole.
    """
    plain = [p for p in shared if type(p) is nn.Parameter]
    memo = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in plain}
    return copy.deepcopy(model, memo)


# LoRA


@guarded
def lora(
    model: Model,
    r: Count = 16,
    alpha: Positive = 32.0,
    target_modules: str | Collection[str] = "all-linear",
    seed: Seed = 0,
) -> Model:
    """`model` with trainable low-rank matrices beside its linear layers (`peft`).

        W x  →  W x + (alpha / r) B A x,      A (r, in), B (out, r) = 0 at first

    LoRA (2106.09685). Only A and B are trained: at first the function is unchanged, and
    with the adapter off it stays so. No dropout. The frozen weights are those of
    `model`, in the same memory; `model` itself is left as it was, and the global random
    generator too.

    **Arguments:**

    - `target_modules`: names of linear layers, as a list or with commas (`"q_proj,
      v_proj"`); `"all-linear"`: every one but the output layer.
    - `seed`: decides A.

    Raises `ValueError` if a named layer does not exist, or if `model` has an adapter
    already; `ImportError` without `peft`.
    """
    peft = _peft()
    if hasattr(model, "peft_config"):
        raise ValueError(
            f"this {type(model).__name__} has an adapter already; train that, or give "
            "the base model"
        )
    targets = _linear_layers(model, target_modules)
    settings = peft.LoraConfig(
        r=r,
        lora_alpha=alpha,
        target_modules=targets,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    base = _copy(model, list(model.parameters()))
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peft about transformers
        torch.default_generator.manual_seed(salted(seed))  # not that of a GPU
        adapted = peft.get_peft_model(base, settings)
    if (name := model.name_or_path) and Path(name).is_dir():  # found from anywhere
        settings.base_model_name_or_path = str(Path(name).resolve())
    return adapted.train(model.training)


def _peft():
    try:
        import peft
    except ImportError as error:
        raise ImportError(
            'a LoRA needs peft: pip install "refimpl[real]", or in a clone '
            'pip install -e ".[real]"'
        ) from error
    return peft


def _linear_layers(
    model: PreTrainedModel, asked: str | Collection[str]
) -> str | list[str]:
    """`asked` as `peft` takes it; `ValueError` if a name is that of no linear layer."""
    if asked == "all-linear":
        return asked
    names = asked.split(",") if isinstance(asked, str) else list(asked)
    names = [name.strip() if isinstance(name, str) else name for name in names]
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D)]
    short = sorted({name.rpartition(".")[2] for name in linear})
    for name in names:
        if not any(f".{full}".endswith(f".{name}") for full in linear):
            raise ValueError(
                f"target_modules: {type(model).__name__} has no linear layer "
                f"{shown(name)}{nearest(name, short)}; it has {', '.join(short)}"
            )
    if not names:
        raise ValueError(
            f"target_modules must name at least one linear layer: {', '.join(short)}, "
            "or 'all-linear'"
        )
    return names


@guarded
def merged(model: Model) -> PreTrainedModel:
    """An ordinary model with W + (alpha / r) B A in place of W; `model` stays a LoRA.

    Raises `ValueError` if `model` has no adapter.
    """
    if not hasattr(model, "merge_and_unload"):
        raise ValueError(
            f"this {type(model).__name__} has no adapter that could be merged"
        )
    # A copy of everything: the frozen weights may be in another model's memory.
    return copy.deepcopy(model).merge_and_unload().requires_grad_(True)


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
    seen = [p.flatten()[:: 1 + p.numel() // each].double().cpu() for p in frozen]
    return torch.cat(seen) if seen else torch.zeros(0)


# Gradient checkpointing


@contextlib.contextmanager
def checkpointed(model: Model) -> Iterator[None]:
    """Layers that run in here keep no activations: `backward` computes them again.

    Memory for time: what is kept is the input of each layer, (B, L, d), and one forward
    pass more is paid. The gradient is the same. Unlike `transformers`' own switch this
    works in eval mode, where there is no dropout. Raises `ValueError` if the model has
    no such layers.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(
            f"gradient_checkpointing: {type(model).__name__} has no layers that "
            "can be computed again (transformers' GradientCheckpointingLayer); leave "
            "it off"
        )
    own = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = functools.partial(
            checkpoint,
            layer.forward,
            use_reentrant=False,
            preserve_rng_state=False,  # nothing is drawn
        )
    try:
        yield
    finally:
        for layer, before in zip(layers, own):
            del layer.forward
            if before is not None:
                layer.forward = before


# A sampler with other weights


def weights(model: Model) -> Float[Tensor, " P"]:
    """All trained weights in one row, copied."""
    return torch.cat([p.detach().flatten() for p in _trained(model)])


def _trained(model: Model) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


@contextlib.contextmanager
def with_weights(model: Model, row: Float[Tensor, " P"]) -> Iterator[None]:
    """In here the trained weights are `row`'s, afterwards its own again."""
    trained = _trained(model)
    parts = row.split([p.numel() for p in trained])
    with _exchanged(trained, [part.view_as(p) for p, part in zip(trained, parts)]):
        yield


@contextlib.contextmanager
def _exchanged(
    parameters: Collection[nn.Parameter], others: Collection[Tensor]
) -> Iterator[None]:
    """In here they stand for `others`. Their own memory, which other models may share,
    is not written to."""
    own = [p.data for p in parameters]
    try:
        for p, other in zip(parameters, others):
            p.data = other
        yield
    finally:
        for p, before in zip(parameters, own):
            p.data = before


@contextlib.contextmanager
def in_int8(model: Model) -> Iterator[None]:
    """In here the model has the weights of an int8 engine, afterwards its own again.

        w ← s · round(w / s)    s = max |w| of the row / 127

    for each row of each matrix, but for the embeddings, the output layer, routers and a
    LoRA, which engines leave alone. Activations stay as they are ("weight-only").
    """
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    routers = moe.routers(model) if moe.is_moe(model) else []
    spared = {
        id(p)
        for layer in (*ends, *routers)
        if layer is not None
        for p in layer.parameters()
    }
    matrices = [
        p
        for name, p in model.named_parameters()
        if p.ndim > 1 and p.is_floating_point() and "lora_" not in name
        if id(p) not in spared
    ]
    with _exchanged(matrices, [_rounded(p.detach()) for p in matrices]):
        yield


def _rounded(w: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    rows = w.flatten(0, -2)
    scale = (rows.abs().amax(-1) / 127).clamp(min=torch.finfo(w.dtype).tiny)
    zero = torch.zeros_like(scale, dtype=torch.int32)
    rounded = torch.fake_quantize_per_channel_affine(rows, scale, zero, 0, -127, 127)
    return rounded.view_as(w)


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
