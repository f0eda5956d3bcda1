"""Solutions to the exercises of chapter 06."""

import math

import torch

UPDATES = 16
"""512 · 16 = 8192 responses in mini-batches of 512, one pass. The first of them has
ratio 1; at the other fifteen the clip can act."""


def highest(p: float, epsilon: float) -> float:
    """The push ends at ratio 1 + ε; a probability ends at 1."""
    return min(1.0, p * (1 + epsilon))


def rollouts_to_climb(start: float, target: float, epsilon: float) -> int:
    """Each rollout multiplies by at most 1 + ε, so it takes a logarithm."""
    return math.ceil(math.log(target / start) / math.log(1 + epsilon))


def kept(rewards: torch.Tensor) -> torch.Tensor:
    """A prompt stays if some answer was right and some was wrong."""
    right = rewards.sum(-1)
    return (right > 0) & (right < rewards.shape[-1])


def punished(correct: float, length: int, max_length: int, buffer: int) -> float:
    """The correctness reward plus Eq. 13."""
    over = length - (max_length - buffer)
    return correct - min(max(over / buffer, 0.0), 1.0)


def price(p: float, size: int) -> float:
    """A group costs G responses and is live with probability 1 − p^G − (1−p)^G."""
    return size / (1 - p**size - (1 - p) ** size)
