"""Solutions to the exercises of chapter 09."""

import math

import torch


def router_shift(new: torch.Tensor, old: torch.Tensor, floor: float) -> float:
    """exp of minus the mean absolute change of log-probability, not below the floor.

    `new` and `old` are (layers, experts): router *probabilities* of the experts that
    the old policy activated.
    """
    drift = (new.log() - old.log()).abs().mean().item()
    return max(math.exp(-drift), floor)


def replayed_weights(logits: torch.Tensor, experts: list[int]) -> list[float]:
    """Softmax of the live logits over the replayed experts only."""
    return logits[experts].softmax(-1).tolist()


def rspo_objective(
    ratios: torch.Tensor, gammas: torch.Tensor, advantage: float
) -> float:
    """γ into the ratio, GMPO's one-sided clip at e^±0.4, geometric mean, times Â."""
    z = (ratios * gammas).log()
    z = z.clamp(max=0.4) if advantage > 0 else z.clamp(min=-0.4)
    return advantage * z.mean().exp().item()
