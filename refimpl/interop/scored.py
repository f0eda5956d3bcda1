"""Advantages of a generation of which some responses could not be scored."""

from collections.abc import Callable

import torch
from torch import Tensor

from refimpl.interop import trl_refused as refused


def advantages_of(
    function: Callable[[Tensor, Tensor], Tensor],
    rewards: Tensor,
    size: int,
    longest: int,
) -> Tensor:
    """`function(rewards, group)`, (N,) or (N, longest), for groups of `size`.

    A reward that is NaN counts in no baseline, and its response has Â = 0, as in TRL.
    """
    group = torch.arange(len(rewards), device=rewards.device) // size
    unscored = rewards.isnan()
    mean = rewards.view(-1, size).nanmean(1).nan_to_num()
    found = function(rewards.where(~unscored, mean[group]), group)
    refused.shape(found, len(rewards), longest)
    return found.where(~unscored.view(-1, *(1,) * (found.ndim - 1)), 0.0)
