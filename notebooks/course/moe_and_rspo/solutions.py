"""Solutions to the exercises of chapter 09."""

import math

import torch

PERCENT = 2
"""9.1: s is multiplied by 0.7^(1/20) = 0.982, for every token alike."""


def router_shift(new: torch.Tensor, old: torch.Tensor, floor: float) -> float:
    """9.2: exp of minus the mean absolute change of log-probability, or the floor.

    `new` and `old` are (layers, experts): router *probabilities* of the experts that
    the old policy activated.
    """
    drift = (new.log() - old.log()).abs().mean().item()
    return max(math.exp(-drift), floor)


def replayed_weights(logits: torch.Tensor, experts: list[int]) -> list[float]:
    """9.3: softmax of the live logits over the replayed experts only."""
    return logits[experts].softmax(-1).tolist()


def rspo_objective(
    ratios: torch.Tensor, gammas: torch.Tensor, advantage: float
) -> float:
    """9.4: γ into the ratio, GMPO's clip at e^±0.4, geometric mean, times Â."""
    z = (ratios * gammas).log()
    z = z.clamp(max=0.4) if advantage > 0 else z.clamp(min=-0.4)
    return advantage * z.mean().exp().item()


FLOOR_FROM = 0.7
"""9.5: e^(−d/2) = 0.7 at d = −2 log 0.7 = 0.713."""

LINE = 6
"""9.6: the sampler's log-probs are not π_old's. The rollout has to be scored again:
old_logp = log_probs(policy, batch).detach(), without the noise. Then r is 1 at K = 1;
the sampler is corrected by a weight, if at all. (A clip that is meant to see a late
sampler, with two policies, is chapter 15's.)"""
