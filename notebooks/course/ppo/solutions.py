"""Solutions to the exercises of chapter 02."""

import torch


def clip_gate(r, advantage, epsilon):
    """Closed in case 3 (Â > 0, r above 1+ε) and case 4 (Â < 0, r below 1−ε)."""
    risen = (advantage > 0) & (r > 1 + epsilon)
    fallen = (advantage < 0) & (r < 1 - epsilon)
    return (~(risen | fallen)).float()


NOTHING_KNOWN = (0.0, 0.5)
"""λ = 0: its own δ, where nothing changes. λ = 1: the return minus V, 1 − 0.5."""


def cut_off_gae(rewards, values, mask, last_value, gamma, lam):
    """Backwards: Â_t = δ_t + γλ Â_{t+1}; padding leaves `last_value` as it is."""
    result = torch.zeros_like(values)
    next_value, next_advantage = last_value, torch.zeros_like(last_value)
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = (delta + gamma * lam * next_advantage) * mask[:, t]
        next_value = torch.where(mask[:, t] > 0, values[:, t], next_value)
        result[:, t] = next_advantage
    return result


PULLS_AND_PUSHES = ("k3", "k1")
"""At d = −2 the slopes are 1 (k1), −2 (k2) and 1 − e² = −6.4 (k3)."""


def clipped_value_loss(value, old_value, target, epsilon):
    """½ max of the two squared errors: the clip may not make the loss smaller."""
    clipped = old_value + (value - old_value).clamp(-epsilon, epsilon)
    return torch.maximum((value - target) ** 2, (clipped - target) ** 2) / 2


def token_rewards(score, logp, ref_logp, beta):
    """−β k1 at every token, and the score at the last one."""
    rewards = -beta * (logp - ref_logp)
    rewards[-1] += score
    return rewards


WRONG_LINE = 4
"""The targets are *raw* + V. Whitened advantages have mean 0, whatever V is.

So nothing ties V to the reward: it may drift anywhere, and the clip and the whitening
hide it from the policy.
"""
