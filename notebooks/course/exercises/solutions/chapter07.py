"""Solutions to the exercises of chapter 07."""

import math

import torch


def token_weights(ratios, cap):
    """min(r, cap) for every token: the sign of Â does not matter, and no floor."""
    return ratios.clamp(max=cap)


def ppo_mask(ratios, advantages, epsilon_low, epsilon_high):
    """0 where Â has already moved r past its bound, else 1 (M1, Eq. 7)."""
    risen = (advantages > 0) & (ratios > 1 + epsilon_high)
    fallen = (advantages < 0) & (ratios < 1 - epsilon_low)
    return (~(risen | fallen)).float()


def cispo_gradient(logp, old_logp, advantages, cap):
    """∇ of the mean of sg[min(r, cap)] Â log π with respect to log π, by autograd."""
    leaf = logp.clone().requires_grad_()
    weight = torch.exp(leaf - old_logp).detach().clamp(max=cap)
    objective = (weight * advantages * leaf).mean()
    return torch.autograd.grad(objective, leaf)[0]


BOUND = 4.0
"""verl clamps at 1 + clip_ratio_high: 1 + 4 = 5."""


TURNING_POINT = math.exp(-1)
"""J = (π/π_old) log π; its derivative (log π + 1)/π_old is 0 at π = 1/e."""
