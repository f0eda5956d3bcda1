"""Solutions to the exercises of chapter 08."""

import torch


def gmpo_objective(ratios: torch.Tensor, advantage: float) -> float:
    """Clip log r on the side the advantage moves it to; mean; exp; times Â."""
    z = ratios.log()
    z = z.clamp(max=0.4) if advantage > 0 else z.clamp(min=-0.4)
    return advantage * z.mean().exp().item()


def token_weights(ratios: torch.Tensor, advantage: float) -> list[float]:
    """GM / T for a free token, 0 for a clipped one; GM holds the clipped ones too."""
    z = ratios.log()
    held = z.clamp(max=0.4) if advantage > 0 else z.clamp(min=-0.4)
    weight = held.mean().exp() / len(z)
    return [weight.item() if a == b else 0.0 for a, b in zip(z, held)]


ALONE = 2.718281828459045**1.6
"""Every other log-ratio is 0, so the mean is log(r)/4: e^0.4 = r^(1/4), r = e^1.6."""
