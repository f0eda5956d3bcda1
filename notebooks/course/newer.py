"""What chapter 14 adds to a method of the registry: a weight, and advantages."""

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.advantages import Scored, group_centred


def icepop(
    old_logp: Float[Tensor, "B T"],
    rollout_logp: Float[Tensor, "B T"],
    low: float = 0.5,
    high: float = 5.0,
) -> Float[Tensor, "B T"]:
    """IcePop (2510.18855): π_old / π_rollout, and 0 outside [low, high]. A factor of
    any method's weight, where truncated importance sampling has min(·, cap)."""
    w = (old_logp - rollout_logp).exp()
    return torch.where((w >= low) & (w <= high), w, 0.0)


def maxrl(scored: Scored) -> Float[Tensor, " N"]:
    """MaxRL (2602.02710): (R − R̄) / R̄, 0 in a group without a reward. An advantage
    for any method: the rarer a success, the more it weighs."""
    centred = group_centred(scored)
    mean = scored.total - centred
    return torch.where(mean > 0, centred / mean.clamp(min=1e-12), 0.0)
