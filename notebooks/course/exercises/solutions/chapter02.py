"""Solutions to the exercises of chapter 02."""

import torch


def clipped_objective(r, advantage, epsilon):
    """min(r A, clip(r, 1−ε, 1+ε) A): the more pessimistic, for both signs."""
    return torch.minimum(r * advantage, r.clamp(1 - epsilon, 1 + epsilon) * advantage)


NO_GRADIENT = [False, False, True, True, False, False]
"""Cases 3 and 4: far enough in the direction that the advantage asks for."""


def advantages(rewards, values, mask, gamma, lam):
    """Backwards: Â_t = δ_t + γλ Â_{t+1}, with V = 0 after the last response token."""
    result = torch.zeros_like(values)
    value_after = torch.zeros_like(values[:, 0])
    following = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * value_after - values[:, t]
        following = (delta + gamma * lam * following) * mask[:, t]
        value_after = values[:, t] * mask[:, t]
        result[:, t] = following
    return result


def k3(logp, ref_logp):
    """π_ref/π_θ − log(π_ref/π_θ) − 1 ≥ 0, π_ref on top."""
    d = logp - ref_logp
    return (-d).exp() - 1 + d


def clipped_value_loss(value, old_value, target, epsilon):
    """½ max of the two squared errors: the clip may not make the loss smaller."""
    clipped = old_value + (value - old_value).clamp(-epsilon, epsilon)
    return torch.maximum((value - target) ** 2, (clipped - target) ** 2) / 2


def token_rewards(score, logp, ref_logp, beta):
    """−β k1 at every token, and the score at the last one."""
    rewards = -beta * (logp - ref_logp)
    rewards[-1] += score
    return rewards
