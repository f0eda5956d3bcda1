"""PPO: Proximal Policy Optimization (1707.06347), in the form RLHF uses.

    J = E_t[ min( r_t Â_t, clip(r_t, 1−ε_low, 1+ε_high) Â_t ) ]           (Eq. 7)
        − c₁ (V − V_targ)² + c₂ S[π]                                      (Eq. 9)

**Changed against REINFORCE:** the ratio r corrects for stale data, the min removes
the incentive to move further than ε, and a critic V gives every token its own Â (GAE).

**Departures.** `dual_clip` = c is not in the paper and is off by default. It floors the
objective at c·Â where Â < 0 (1912.09729, Eq. 5); verl always uses c = 3. Tokens are
averaged over the batch. The critic is a separate network, so its learning rate takes
the place of c₁. The trainer adds the c₂ term (`entropy_bonus`) and the KL (`beta`, in
the reward or in the loss).
"""

from typing import Annotated

import torch
from jaxtyping import Float, Shaped
from pydantic import Field
from torch import Tensor

from refimpl.advantages import gae
from refimpl.algorithms.base import Algorithm, Objective, Tokens
from refimpl.importance import Mask, ratio
from refimpl.normalisers import token_mean
from refimpl.validation import Positive, UserError

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
    """min(r Â, clip(r, 1−ε_low, 1+ε_high) Â), and the tokens that the clip stops.

    `ratio` is one per token, (B, T), or one per response, (B, 1).
    """
    low, high = 1 - epsilon_low, 1 + epsilon_high
    value = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    if dual_clip is not None:
        floored = torch.maximum(value, dual_clip * advantages)
        value = torch.where(advantages < 0, floored, value)
    return Objective(value, *stopped(ratio, advantages, low, high))


def stopped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple:
    """Mark the tokens that a one-sided clip to [low, high] stops: (below, above)."""
    return (advantages < 0) & (ratio < low), (advantages > 0) & (ratio > high)


def objective(
    t: Tokens,
    *,
    epsilon_low: EpsilonLow = 0.2,
    epsilon_high: EpsilonHigh = 0.2,
    dual_clip: DualClip = None,
) -> Objective:
    """min(r Â, clip(r, 1−ε_low, 1+ε_high) Â) at every token."""
    return clipped(ratio(t.z), t.advantages, epsilon_low, epsilon_high, dual_clip)


def value_loss(
    values: Float[Tensor, "B T"],
    old_values: Float[Tensor, "B T"],
    targets: Float[Tensor, "B T"],
    mask: Mask,
    weight: Shaped[Tensor, "B T"] | None = None,
    *,
    epsilon: float | None = 0.2,
) -> Float[Tensor, ""]:
    """½ Σ weight · max((V − R)², (clip(V, V_old ± ε) − R)²), over response tokens.

    The clip keeps V from moving further than ε from the rollout's V; ε is in reward
    units, None turns the clip off. `weight` (B, T) is one of `refimpl.normalisers`, by
    default the mean over tokens.

    Raises `UserError` if an argument has another shape than `mask`.
    """
    weight = token_mean(mask.to(values.dtype)) if weight is None else weight
    given = {"values": values, "old_values": old_values, "targets": targets}
    for name, x in (given | {"weight": weight}).items():
        if x.shape != mask.shape:  # another shape could broadcast silently
            raise UserError(
                f"{name} must have one number per token, like the mask of shape "
                f"{tuple(mask.shape)}, got {tuple(x.shape)}"
            )
    response = mask.bool()  # a value at padding must not get a gradient
    values, old_values, targets = (
        torch.where(response, x, 0.0) for x in (values, old_values, targets)
    )
    error = (values - targets) ** 2
    if epsilon is not None:
        clipped = old_values + (values - old_values).clamp(-epsilon, epsilon)
        error = torch.maximum(error, (clipped - targets) ** 2)
    return (error / 2 * weight).sum()


PPO = Algorithm(
    name="ppo",
    title="PPO",
    paper="Schulman et al. 2017, 1707.06347",
    parent="reinforce",
    changed="token ratio, one-sided clip, critic with GAE",
    objective=objective,
    advantages=gae,
    normaliser=token_mean,
    critic=True,
)
