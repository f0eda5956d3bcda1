"""Solutions to the exercises of chapter 06."""

import math

import torch

SAME_ROOM_FROM = 0.83
"""1/1.2: from there on even GRPO's clip lies beyond probability 1, so both tokens are
limited by 1 alone."""

EASY_SHARE = "an eighth"
"""A group of 16 is live with probability 1.00 at p = 0.5, and 0.149 at p = 0.99. So the
easy prompts are 0.149/(1.00 + 0.149) = 13 % of the batch."""

BUG = 6
"""Dead or alive is a matter of being right: `live = right.std(1) > 0`. With the
punishment in it, a group of wrong answers of which one runs long counts as live, and
trains the policy on brevity alone."""


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
