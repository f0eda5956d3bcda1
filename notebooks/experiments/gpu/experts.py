"""Experts of a mixture under autocast, which has no rule for their grouped products.

In float32 a GPU computes one product per expert, and waits for their sizes. On an H200
a rollout of RSPO on `small-moe` then took 1.2 and 1.3 times as long (on two days).
"""

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations import moe as products

NAME = "in_autocast"


def use(model: PreTrainedModel) -> None:
    """Make this model and its copies compute their experts with `in_autocast`."""
    products.ALL_EXPERTS_FUNCTIONS.register(NAME, in_autocast)
    model.set_experts_implementation(NAME)


def in_autocast(experts: nn.Module, *given: Tensor) -> Tensor:
    """Compute `transformers`' grouped products in autocast's dtype."""
    if torch.is_autocast_enabled(kind := given[0].device.type):
        dtype, weights = torch.get_autocast_dtype(kind), experts.named_parameters()
        cast = {name: p.to(dtype) for name, p in weights}
        experts = copy.copy(experts)
        vars(experts).update(cast, _parameters={})
    return products.grouped_mm_experts_forward(experts, *given)
