"""Solutions to the exercises of chapter 01 in which something is written.

1.1: "guess". 1.3: 70. 1.6: line 3; the gradients must be cleared in every step, so
`zero_grad` belongs inside the loop.
"""

import torch
from torch import Tensor


def score_gradient(probs: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
    """Mean over samples of R · ∇log π(a), with ∇log π(a) = onehot(a) − π for logits."""
    chosen = torch.nn.functional.one_hot(actions, len(probs)).to(probs.dtype)
    return (rewards[:, None] * (chosen - probs)).mean(0)


def response_weight(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """Π_t π_θ / π_old over the response's own tokens: the exp of a masked sum."""
    return ((logp - old_logp) * mask).sum(-1).exp()


def best_baseline(probs: Tensor, rewards: Tensor, scores: Tensor) -> Tensor:
    """E[R ‖ψ‖²] / E[‖ψ‖²]: the mean reward, weighted by how long the scores are."""
    weight = probs * (scores**2).sum(-1)
    return (weight * rewards).sum() / weight.sum()
