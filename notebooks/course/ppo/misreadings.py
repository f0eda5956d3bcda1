"""Misreadings of PPO: chapter 02."""

import torch

from course.kit.misreading import Misreading
from course.kit.plain import clipped

EPSILON = 0.2


def ratios_after_updates(advantages, steps=400, learning_rate=0.02, momentum=0.0):
    """π_θ/π_old of V tokens after `steps` updates of one clipped loss.

    One uniform categorical over V tokens, each sampled once with its own advantage.
    """
    logits = torch.zeros_like(advantages, requires_grad=True)
    old_logp = logits.detach().log_softmax(-1)
    optimizer = torch.optim.SGD([logits], lr=learning_rate, momentum=momentum)
    for _ in range(steps):
        optimizer.zero_grad()
        r = (logits.log_softmax(-1) - old_logp).exp()
        (-clipped(r, advantages).mean()).backward()
        optimizer.step()
    return (logits.detach().log_softmax(-1) - old_logp).exp()


def ratios_if_clipping_bounded_them(advantages, **settings):
    """What "the ratio is kept within [1−ε, 1+ε]" would make of the same updates."""
    return ratios_after_updates(advantages, **settings).clamp(1 - EPSILON, 1 + EPSILON)


MISREADINGS = [
    Misreading(
        "clip_on_wrong_sides",
        "Clipping takes the min for A ≥ 0 and the max for A < 0.",
        "Take the min for both signs: it is the more pessimistic of two objectives.",
        {
            "torch.minimum(ratio * advantages, inside * advantages)": (
                "torch.minimum(ratio, inside) * advantages"
            )
        },
        clipped,
    ),
    Misreading(
        "clip_without_min",
        "PPO's objective is clip(r, 1−ε, 1+ε) A.",
        "Without the min, a bad token that rose above 1+ε or a good one that fell "
        "below 1−ε gets no gradient back. The clip is one-sided.",
        {
            "torch.minimum(ratio * advantages, inside * advantages)": (
                "inside * advantages"
            )
        },
        clipped,
    ),
    Misreading(
        "ratio_is_bounded",
        "Clipping keeps the ratio within [1−ε, 1+ε].",
        "It only removes the reward for going further. The ratio still moves on, "
        "because other tokens share the parameters and because of momentum.",
        ratios_if_clipping_bounded_them,
        ratios_after_updates,
    ),
]
