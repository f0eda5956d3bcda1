"""Solutions to the exercises of chapter 07."""

import torch


def capped_ratios(ratios, cap):
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
    capped = torch.exp(leaf - old_logp).detach().clamp(max=cap)
    objective = (capped * advantages * leaf).mean()
    return torch.autograd.grad(objective, leaf)[0]


BOUND = 7.0
"""verl clamps at 1 + clip_ratio_high: 1 + 7 = 8."""


CAP_OF_ONE = "between"
"""A coefficient of 1 is more than DAPO's 0, and less than a ratio of up to 5."""


HARDEST = "DAPO"
"""A correction has c = r = 3 under DAPO; the cap holds the other two at 2."""


BUG = 6
"""The stop-gradient stands on log π: through r the gradient is r Â log π ∇log π, and
log π < 0 turns its sign. It belongs on `capped`."""
