"""Solutions to the exercises of chapter 10."""

import math

import torch


def sapo_objective(
    ratios: torch.Tensor, advantage: float, tau_pos: float, tau_neg: float
) -> float:
    """(4/τ) σ(τ(r − 1)) Â, averaged over the response."""
    tau = tau_pos if advantage > 0 else tau_neg
    return (4 / tau * torch.sigmoid(tau * (ratios - 1)) * advantage).mean().item()


def tau_for(width: float) -> float:
    """sech²(τ w/2) = ½ at τ w = 2 arcosh √2 ≈ 1.763."""
    return 2 * math.acosh(math.sqrt(2)) / width


def damped_corrections(ratios: list[float], advantages: list[float]) -> int:
    """Tokens that moved against their advantage: PPO lets them back in full."""
    pairs = zip(ratios, advantages)
    return sum((a > 0 and r < 1) or (a < 0 and r > 1) for r, a in pairs)
