"""Solutions to the exercises of chapter 04."""

import torch

LENGTH_PRESSURE = ["longer", "shorter", "none", "none"]
"""1/|o| climbs E[(R − b)/|o|]. Where R − b < 0 a longer response loses less; where
R − b > 0 a shorter one gains more. A constant leaves E[R − b]: no length in it."""


def token_weights(lengths: list[int], limit: int) -> tuple[list[float], list[float]]:
    """GRPO: 1/(B|o_i|), its own length. Dr. GRPO: 1/(B·L_max), the same for all."""
    rows = len(lengths)
    return [1 / (rows * n) for n in lengths], [1 / (rows * limit) for _ in lengths]


def dr_grpo_loss(
    ratio: torch.Tensor, rewards: torch.Tensor, mask: torch.Tensor, limit: int
) -> float:
    """One group. Centre the rewards; clip; sum over tokens; divide by G · L_max."""
    advantages = (rewards - rewards.mean())[:, None]
    clipped = ratio.clamp(0.8, 1.2) * advantages
    objective = torch.minimum(ratio * advantages, clipped)
    return -((objective * mask).sum() / (len(rewards) * limit)).item()


def pull(correct: int, size: int) -> float:
    """k answers with 1 − k/G and G − k with k/G: 2k(G − k)/G."""
    return 2 * correct * (size - correct) / size
