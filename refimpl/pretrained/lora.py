"""LoRA: low-rank matrices beside the linear layers of a model that stays as it is."""

import copy
import warnings
from collections.abc import Collection
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from refimpl.models import Model, copied
from refimpl.pretrained.extras import needed
from refimpl.seeds import salted
from refimpl.validation import Count, Positive, Seed, UserError, guarded, nearest, shown


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

    Raises `UserError` if a named layer does not exist, `r` is above the rank that any
    of the layers can have, or if `model` has an adapter
    already, or without `peft`.
    """
    peft = needed("peft")
    if hasattr(model, "peft_config"):
        raise UserError(
            f"this {type(model).__name__} has an adapter already; train that, or give "
            "the base model"
        )
    targets = _linear_layers(model, target_modules)
    if r > (most := _largest_rank(model, targets)):
        raise UserError(
            f"r must be at most {most} here, got {r}: none of the layers has a larger "
            "rank, so that a LoRA would only cost memory"
        )
    settings = peft.LoraConfig(
        r=r,
        lora_alpha=alpha,
        target_modules=targets,
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    base = copied(model, list(model.parameters()))
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of peft about transformers
        torch.default_generator.manual_seed(salted(seed))  # not that of a GPU
        adapted = peft.get_peft_model(base, settings)
    if (name := model.name_or_path) and Path(name).is_dir():  # found from anywhere
        settings.base_model_name_or_path = str(Path(name).resolve())
    return adapted.train(model.training)


def _linear_layers(
    model: PreTrainedModel, asked: str | Collection[str]
) -> str | list[str]:
    """`asked` as `peft` takes it; `UserError` if a name is that of no linear layer."""
    if asked == "all-linear":
        return asked
    names = asked.split(",") if isinstance(asked, str) else list(asked)
    names = [name.strip() if isinstance(name, str) else name for name in names]
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D)]
    short = sorted({name.rpartition(".")[2] for name in linear})
    for name in names:
        if not any(f".{full}".endswith(f".{name}") for full in linear):
            raise UserError(
                f"target_modules: {type(model).__name__} has no linear layer "
                f"{shown(name)}{nearest(name, short)}; it has {', '.join(short)}"
            )
    if not names:
        raise UserError(
            f"target_modules must name at least one linear layer: {', '.join(short)}, "
            "or 'all-linear'"
        )
    return names


def _largest_rank(model: PreTrainedModel, targets: str | list[str]) -> int:
    """The smaller of a layer's input and output sizes, over all layers."""
    most = 0
    for name, layer in model.named_modules():
        named = any(f".{name}".endswith(f".{target}") for target in targets)
        if isinstance(layer, nn.Linear) and (named or targets == "all-linear"):
            most = max(most, min(layer.in_features, layer.out_features))
        if isinstance(layer, Conv1D) and (named or targets == "all-linear"):
            most = max(most, min(layer.weight.shape))
    return most


@guarded
def merged(model: Model) -> PreTrainedModel:
    """An ordinary model with W + (alpha / r) B A in place of W; `model` stays a LoRA.

    Raises `UserError` if `model` has no adapter.
    """
    if not hasattr(model, "merge_and_unload"):
        raise UserError(
            f"this {type(model).__name__} has no adapter that could be merged"
        )
    # A copy of everything: the frozen weights may be in another model's memory.
    return copy.deepcopy(model).merge_and_unload().requires_grad_(True)
