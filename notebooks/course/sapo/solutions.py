"""Solutions to the exercises of chapter 10."""

import math

import torch


def sapo_objective(
    ratios: torch.Tensor, advantage: float, tau_pos: float, tau_neg: float
) -> float:
    """(4/τ) σ(τ(r − 1)) Â, averaged over the response."""
    tau = tau_pos if advantage > 0 else tau_neg
    return (4 / tau * torch.sigmoid(tau * (ratios - 1)) * advantage).mean().item()


def tau_for(width: float, left: float) -> float:
    """sech²(τ·width/2) = left at τ = 2 arcosh(1/√left) / width."""
    return 2 * math.acosh(1 / math.sqrt(left)) / width


def damped_corrections(ratios: list[float], advantages: list[float]) -> int:
    """Tokens that moved against their advantage: PPO lets them back in full."""
    pairs = zip(ratios, advantages)
    return sum((a > 0 and r < 1) or (a < 0 and r > 1) for r, a in pairs)


NEEDLE = "equal"
"""Before the first update every ratio is 1, where the gate is 1 for every τ."""

AT_RATIO = 2
"""The lower right panel: c = g r has its top near r = 2."""

BUG = 7
"""The gate is centred at r = 1, and z − 1 is not r − 1: exp is missing."""
