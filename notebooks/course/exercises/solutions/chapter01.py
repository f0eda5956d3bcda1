"""Solutions to the exercises of chapter 01."""

import torch
from torch import Tensor


def score_gradient(probs: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
    """Mean over samples of R · ∇log π(a), with ∇log π(a) = onehot(a) − π for logits."""
    chosen = torch.nn.functional.one_hot(actions, len(probs)).to(probs.dtype)
    return (rewards[:, None] * (chosen - probs)).mean(0)


def logit_push(logits: Tensor, token: int, advantage: float) -> Tensor:
    """(1[v = y] − π(v)) · A."""
    push = -logits.softmax(-1)
    push[token] += 1
    return push * advantage


def leave_one_out(rewards: Tensor) -> Tensor:
    """R_i minus the mean of the other responses of its row."""
    group_size = rewards.shape[1]
    others = (rewards.sum(-1, keepdim=True) - rewards) / (group_size - 1)
    return rewards - others


def effective_samples(weights: Tensor) -> Tensor:
    """(Σ w)² / Σ w²: N if all weights are equal, 1 if one has everything."""
    return weights.sum() ** 2 / (weights**2).sum()


def response_weight(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """Π_t π_θ / π_old over the response's own tokens: the exp of a masked sum."""
    return ((logp - old_logp) * mask).sum(-1).exp()


def best_baseline(probs: Tensor, rewards: Tensor, scores: Tensor) -> Tensor:
    """E[R ‖g‖²] / E[‖g‖²]: the mean reward, weighted by how long the gradients are."""
    weight = probs * (scores**2).sum(-1)
    return (weight * rewards).sum() / weight.sum()
