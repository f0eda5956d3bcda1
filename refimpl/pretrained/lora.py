"""LoRA: trainable low-rank matrices next to the frozen linear layers of a model."""

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
from refimpl.validation import Count, Positive, Seed, UserError, guarded


@guarded
def lora(
    model: Model,
    r: Count = 16,
    alpha: Positive = 32.0,
    target_modules: str | Collection[str] = "all-linear",
    seed: Seed = 0,
) -> Model:
    """Add trainable low-rank matrices to the linear layers of `model` (`peft`).

        W x  →  W x + (alpha / r) B A x,      A (r, in), B (out, r) = 0 at first

    LoRA (2106.09685). Only A and B are trained; `seed` decides A. At the start the
    model computes the same function as before. There is no dropout. The frozen weights
    share the memory of `model`, which stays unchanged.

    `target_modules` are names of linear layers, as a list or with commas (`"q_proj,
    v_proj"`); `"all-linear"` takes all of them except the output layer. Raises
    `UserError` if there is no such layer, or if `model` already has an adapter.
    """
    peft = needed("peft")
    if hasattr(model, "peft_config"):  # peft would only warn
        raise UserError("the model has a LoRA already: train that, or give its base")
    settings = peft.LoraConfig(
        r=r,
        lora_alpha=alpha,
        target_modules=_linear_layers(model, target_modules),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )
    base = copied(model, list(model.parameters()))
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns about transformers
        torch.default_generator.manual_seed(salted(seed))  # leaves the GPU's generator
        adapted = peft.get_peft_model(base, settings)
    # An absolute path, so that the adapter finds its base model from any folder.
    if (name := model.name_or_path) and Path(name).is_dir():
        settings.base_model_name_or_path = str(Path(name).resolve())
    return adapted.train(model.training)


def _linear_layers(
    model: PreTrainedModel, targets: str | Collection[str]
) -> str | list[str]:
    """Convert `targets` for `peft`; `UserError` if a name is not a linear layer's.

    peft fails only if none of the names is one.
    """
    if targets == "all-linear":
        return targets
    names = targets.split(",") if isinstance(targets, str) else targets
    names = [name.strip() for name in names]
    linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D)]
    for name in names:
        if not any(f".{full}".endswith(f".{name}") for full in linear):
            known = sorted({full.rpartition(".")[2] for full in linear})
            raise UserError(
                f"target_modules: the model has no linear layer {name!r}; it has "
                f"{', '.join(known)}"
            )
    return names


@guarded
def merged(model: Model) -> PreTrainedModel:
    """Return a copy without its LoRA, with the weights W + (alpha / r) B A."""
    # A copy of everything: the frozen weights may be in another model's memory.
    return copy.deepcopy(model).merge_and_unload().requires_grad_(True)
