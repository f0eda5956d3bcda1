"""Solutions to the exercises of chapter 03."""

import torch

FIRST_LOSS = 0.0
"""Every ratio is 1 and every response weighs 1/B, so the loss is −mean Â. Each group's
advantages add up to 0, whatever the rewards were. The gradient is not 0."""


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """Centre each row on its own mean, then divide by its own std (ddof = 1)."""
    centred = rewards - rewards.mean(-1, keepdim=True)
    return centred / (rewards.std(-1, keepdim=True) + 1e-6)


def dead_share(rewards: torch.Tensor) -> float:
    """A row whose smallest and largest reward agree has no advantage to give."""
    return (rewards.amin(-1) == rewards.amax(-1)).double().mean().item()


def updates_per_rollout(
    prompts: int, group_size: int, responses_per_minibatch: int, epochs: int
) -> int:
    """Mini-batches in the rollout, times passes over it."""
    return prompts * group_size // responses_per_minibatch * epochs


def token_weights(lengths: list[int]) -> tuple[list[float], list[float]]:
    """GRPO: 1/(B|o_i|), its own length. PPO: 1/Σ|o|, the same for every token."""
    rows, total = len(lengths), sum(lengths)
    return [1 / (rows * n) for n in lengths], [1 / total for _ in lengths]
