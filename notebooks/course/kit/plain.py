"""Formulas for the misreadings, written without the rest of the package."""

import torch


def clipped(ratio, advantages, low=0.2, high=0.2):
    """min(r Â, clip(r, 1−ε_low, 1+ε_high) Â): PPO's objective (1707.06347, Eq. 7)."""
    inside = ratio.clamp(1 - low, 1 + high)
    return torch.minimum(ratio * advantages, inside * advantages)


def clipped_logs(z, advantages, limit=0.4):
    """GMPO's clip: log-ratios, bounded on the side to which the advantage pushes."""
    return torch.where(advantages > 0, z.clamp(max=limit), z.clamp(min=-limit))


def sequence_ratio(logp, old_logp, mask):
    """s_i = exp((1/|o_i|) Σ_t z_{i,t}), (B, 1): GSPO's ratio (2507.18071, Eq. 7)."""
    total = ((logp - old_logp) * mask).sum(-1, keepdim=True)
    return (total / mask.sum(-1, keepdim=True)).exp()


def mean_of_rows(each, mask):
    """(1/B) Σ_i (1/|o_i|) Σ_t."""
    return ((each * mask).sum(-1) / mask.sum(-1)).mean()


def token_mean(each, mask):
    """(1/Σ_i|o_i|) Σ_i Σ_t."""
    return (each * mask).sum() / mask.sum()
