"""The one-sided clip of PPO and its children, over whichever ratio they take.

    min( r Â, clip(r, 1−ε_low, 1+ε_high) Â )                     (1707.06347, Eq. 7)

`dual_clip` = c floors it at c·Â where Â < 0 (1912.09729, Eq. 5): off by default, always
on in verl (c = 3).
"""

from typing import Annotated

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from refimpl.algorithms.base import Objective
from refimpl.validation import Positive

EpsilonLow = Annotated[float, Field(gt=0, le=1)]  # 1 − ε is a ratio, never negative
EpsilonHigh = Positive
DualClip = Annotated[float, Field(gt=1)] | None


def clipped(
    ratio: Float[Tensor, "B _"],
    advantages: Float[Tensor, "B T"],
    epsilon_low: float,
    epsilon_high: float,
    dual_clip: float | None = None,
) -> Objective:
    """The objective above, and the tokens whose gradient the clip takes."""
    low, high = 1 - epsilon_low, 1 + epsilon_high
    value = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    if dual_clip is not None:
        floored = torch.maximum(value, dual_clip * advantages)
        value = torch.where(advantages < 0, floored, value)
    return Objective(value, *stopped(ratio, advantages, low, high))


def stopped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple:
    """Where a one-sided clip to [low, high] takes the gradient: (below, above)."""
    return (advantages < 0) & (ratio < low), (advantages > 0) & (ratio > high)
