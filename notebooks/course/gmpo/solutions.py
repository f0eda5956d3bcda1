"""Solutions to the exercises of chapter 08."""

import torch

COMPANIONS = 1.1
"""8.1: the wild token counts as e^0.4, so s = e^(0.4/4) = 1.105."""


def gmpo_objective(ratios: torch.Tensor, advantage: float) -> float:
    """8.2: clip log r on the side the advantage moves it to; mean; exp; times Â."""
    z = ratios.log()
    z = z.clamp(max=0.4) if advantage > 0 else z.clamp(min=-0.4)
    return advantage * z.mean().exp().item()


def token_coefficients(ratios: torch.Tensor, advantage: float) -> list[float]:
    """8.3: s / |o| for a free token, 0 for a clipped one; s holds the clipped ones too.

    Clipped is what lies *beyond* its bound.
    """
    z = ratios.log()
    clipped = z.clamp(max=0.4) if advantage > 0 else z.clamp(min=-0.4)
    push = clipped.mean().exp() / len(z)
    return [push.item() if a == b else 0.0 for a, b in zip(z, clipped)]


TIMES = 4
"""8.4: 0.2^(1/8) = 0.82 in GMPO, 0.2 in GRPO."""

LINE = 6
"""8.5: z is a log-ratio, and its bounds are ∓0.4. With e^∓0.4 every z of a bad response
is below the lower bound, 0.67, already on policy: bad responses have no gradient."""
