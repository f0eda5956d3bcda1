"""A world of two choices, in which every gradient can be worked out exactly.

The first token chooses a habit, and the second decides whether a careful answer or a
ramble is right. So there are five responses: careful right, careful wrong, guess,
ramble right, ramble wrong.
"""

import torch
from torch import Tensor
from torch.autograd.functional import jacobian

REWARD = torch.tensor([1, 0, 0.08, 1, 0], dtype=torch.float64)
"""The mean reward of each response."""
THETA = torch.tensor([0.30, 0.45, 0.25, 0.96, 0.04, 0.02, 0.98]).double().log()
"""Logits of the habits, then of right and wrong after *careful* and after *ramble*."""


def log_probs(theta: Tensor) -> Tensor:
    """log π of both tokens of all five responses, (5, 2): 0 where none is."""
    fork, after_careful, after_ramble = theta.split([3, 2, 2])
    fork, nothing = fork.log_softmax(-1), theta.new_zeros(1)
    careful = after_careful.log_softmax(-1)
    ramble = after_ramble.log_softmax(-1)
    second = torch.cat([careful, nothing, ramble])
    return torch.stack([fork[[0, 0, 1, 2, 2]], second], -1)


def exact_gradient(reward: Tensor, theta: Tensor = THETA) -> Tensor:
    """∇ of the mean reward, from autograd."""
    return jacobian(lambda x: log_probs(x).sum(-1).exp() @ reward, theta)


def mean_of(factor: Tensor, sampled: Tensor = THETA, theta: Tensor = THETA) -> Tensor:
    """Mean of Σ_t factor_t ∇log π_t over responses sampled from `sampled`."""
    prob = log_probs(sampled).sum(-1).exp()
    return prob @ (factor[:, :, None] * jacobian(log_probs, theta)).sum(1)
