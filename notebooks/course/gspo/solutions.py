"""Solutions to the exercises of chapter 05."""

import math

import torch


def sequence_ratio(z: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The exponential of the mean log-ratio over the response's own tokens."""
    return ((z * mask).sum(-1) / mask.sum(-1)).exp()


def is_clipped(
    s: list[float], advantages: list[float], low: float, high: float
) -> list[bool]:
    """A clip bites where s has gone too far in the direction that Â asked for."""
    return [
        (a > 0 and x > 1 + high) or (a < 0 and x < 1 - low)
        for x, a in zip(s, advantages, strict=True)
    ]


def room_for_one_token(length: int, epsilon: float) -> float:
    """s = exp(z/|o|) reaches 1 + ε at z = |o| log(1 + ε); r = e^z."""
    return math.exp(length * math.log(1 + epsilon))


def pushes(z: list[float], advantages: list[float]) -> tuple[list[float], list[float]]:
    """GSPO: s · mean Â / |o| at every token. GSPO-token: s · Â_t / |o|."""
    n = len(z)
    s = math.exp(sum(z) / n)
    mean = sum(advantages) / n
    return [s * mean / n] * n, [s * a / n for a in advantages]


WILD_TOKEN = 0
"""log s = (7 · 0.262 − 2.996) / 8 = −0.145: s = 0.865 < 1, and Â > 0, so it is open."""


WILL_DO = "none"
"""At 64 tokens: product 1.000 ± 3.4, one token 1.000 ± 0.2, s 0.980 ± 0.025."""


BUG = 6
"""π_old is read anew at every update, so s is 1 and the clip never acts."""
