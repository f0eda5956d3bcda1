"""Advantages: how much better a response, or a token, was than expected.

Group functions take rewards (B,) and group ids (B,): rows with the same id answer
the same prompt. Ids are any integers, in any order, and groups may differ in size.
"""

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from refimpl.arguments import guarded
from refimpl.importance import Mask
from refimpl.settings import Share, Weight


@guarded
def group_relative(
    rewards: Real[Tensor, " B"], group: Int[Tensor, " B"], eps: Weight = 1e-6
) -> Float[Tensor, " B"]:
    """Â_i = (R_i − mean R) / (std R + eps). GRPO (2402.03300), §4.1.2.

    The paper states neither the std's degrees of freedom nor eps. Code in the field
    uses the sample std (ddof = 1), as here, with eps 1e-6 (verl), 1e-4 (TRL) or 1e-8
    (Oat). A group whose rewards are all equal gets exactly 0, not rounding noise
    divided by eps.

    Raises `ValueError` if a group has fewer than two responses.
    """
    centred = group_centred(rewards, group)
    _, index, size = _groups(centred, group)
    variance = _group_sum(centred**2, index, size) / (size - 1)
    return centred / (variance.sqrt() + eps)[index]


@guarded
def group_centred(
    rewards: Real[Tensor, " B"], group: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """Ã_i = R_i − mean R, no division by the std. Dr. GRPO (2503.20783).

    Raises `ValueError` if a group has fewer than two responses.
    """
    rewards = rewards.to(torch.promote_types(rewards.dtype, torch.float32))
    _, index, size = _groups(rewards, group)
    centred = rewards - (_group_sum(rewards, index, size) / size)[index]
    # The float mean of n equal numbers need not be that number: ask, don't compute.
    low = torch.full_like(size, torch.inf).scatter_reduce(0, index, rewards, "amin")
    high = torch.full_like(size, -torch.inf).scatter_reduce(0, index, rewards, "amax")
    return torch.where((low == high)[index], 0.0, centred)


@guarded
def leave_one_out(
    rewards: Real[Tensor, " B"], group: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """A_i = R_i − mean_{j≠i} R_j = G/(G−1) · (R_i − mean R). RLOO (2402.14740).

    The baseline does not contain R_i, so it adds no bias at all.

    Raises `ValueError` if a group has fewer than two responses.
    """
    centred = group_centred(rewards, group)
    _, index, size = _groups(centred, group)
    return centred * (size / (size - 1))[index]


@guarded
def gae(
    rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    mask: Mask,
    gamma: Share = 1.0,
    lam: Share = 0.95,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Generalised advantage estimation (1506.02438, Eq. 16); returns (Â, targets).

        Â_t = Σ_l (γλ)^l δ_{t+l},   δ_t = r_t + γ V_{t+1} − V_t,   targets = Â + V

    V after the last response token is 0: an episode ends there, also a truncated one.
    t + 1 is the next *response* token: a hole in the mask is stepped over. λ = 1
    telescopes to return − V; λ = 0 is δ. Both outputs are detached.
    """
    response = mask.bool()
    rewards = torch.where(response, rewards.detach(), 0.0)
    values = torch.where(response, values.detach(), 0.0)
    advantages = torch.zeros_like(values)
    following = value_after = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * value_after - values[:, t]
        here = delta + gamma * lam * following
        following = torch.where(response[:, t], here, following)
        value_after = torch.where(response[:, t], values[:, t], value_after)
        advantages[:, t] = here * response[:, t]
    return advantages, advantages + values


@guarded
def whiten(
    advantages: Float[Tensor, "B T"], mask: Mask, eps: Weight = 1e-8
) -> Float[Tensor, "B T"]:
    """Mean 0 and standard deviation 1 over all response tokens; 0 elsewhere.

    The RLHF form of PPO whitens over the batch (openai/lm-human-preferences).
    """
    response, count = mask.bool(), mask.sum().clamp(min=1)
    mean = torch.where(response, advantages, 0.0).sum() / count
    centred = torch.where(response, advantages - mean, 0.0)
    return centred / ((centred**2).sum() / count + eps).sqrt()


def _groups(rewards: Tensor, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, each row's group as an index, and the groups' sizes as floats."""
    ids, index, size = group.unique(return_inverse=True, return_counts=True)
    if (size < 2).any():
        lone = ids[size < 2][0].item()
        raise ValueError(
            "a group baseline needs at least 2 responses to the same prompt, but "
            f"group {lone} has 1; sample with group_size ≥ 2"
        )
    return ids, index, size.to(rewards.dtype)


def _group_sum(x: Tensor, index: Tensor, size: Tensor) -> Tensor:
    return torch.zeros_like(size).index_add(0, index, x)
