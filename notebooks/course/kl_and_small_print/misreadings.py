"""Misreadings of PPO's small print: chapter 02b. Those of the KL are chapter 03's."""

import torch

from course.kit.misreading import Misreading


def steps_scaled_by_the_limit(norm, limit, updates=200):
    """What a learning rate that much smaller would do: a step of limit/norm."""
    return [min(1.0, limit / norm)] * updates


def steps_of_adam(norm, limit, updates=200):
    """Adam's step at each update, in units of the learning rate.

    All gradients have this norm, and are cut to the limit before Adam sees them.
    """
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=1.0, betas=(0.9, 0.95))
    steps = []
    for _ in range(updates):
        before = weight.item()
        weight.grad = torch.tensor([min(norm, limit)], dtype=torch.float64)
        optimizer.step()
        steps.append(before - weight.item())
    return steps


MISREADINGS = [
    Misreading(
        "norm_limit_is_a_learning_rate",
        "A lower limit for the gradient's norm makes smaller steps.",
        "Not with Adam, which divides by the gradient's own size. A limit below the "
        "usual norm gives all gradients the same norm, which then cancels.",
        steps_scaled_by_the_limit,
        steps_of_adam,
    ),
]
