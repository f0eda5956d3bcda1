"""Advantages of a TRL generation in which some responses may have no score."""

from collections.abc import Callable

import torch
from torch import Tensor

from refimpl.advantages import Scored, check_estimate
from refimpl.validation import UserError


def advantages_of(
    function: Callable[[Scored], Tensor], rewards: Tensor, mask: Tensor, size: int
) -> Tensor:
    """Compute `function(Scored(rewards, group, mask))`, (N,) or (N, T).

    Groups have `size` responses. A response whose reward is NaN has Â = 0 and does not
    change the group's mean, as in TRL. Raises `UserError` if the groups are incomplete,
    or if `function` returns another shape.
    """
    if len(rewards) % size:
        raise UserError(
            f"{len(rewards)} rewards are not a whole number of groups of {size}"
        )
    group = torch.arange(len(rewards), device=rewards.device) // size
    unscored = rewards.isnan()
    mean = rewards.view(-1, size).nanmean(1).nan_to_num()
    scored = Scored(rewards.where(~unscored, mean[group]), group, mask)
    advantages = function(scored)
    check_estimate(advantages, mask, "what advantages returns")
    unscored = unscored.view(-1, *(1,) * (advantages.ndim - 1))
    return advantages.to(rewards.device).where(~unscored, 0.0)
