"""Batches that the tests of losses share, and losses with whatever weight they need."""

import math

import pytest
import torch
from torch import tensor
from torch.autograd import grad

from refimpl import normalisers
from refimpl.algorithms import ALGORITHMS

every = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
NAN, INF = math.nan, math.inf
EXACT = {"rtol": 0, "atol": 1e-12}
FLOAT64 = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:.*geometric mean over a whole"),
]
"""Marks of a module."""
WIDE = {"epsilon_low": 1.0, "epsilon_high": 1e9}
"""No clip for a method that clips ratios."""


def mask_of(lengths, width=None):
    width = max(lengths) if width is None else width
    return (torch.arange(width) < tensor(lengths)[:, None]).double()


def random_batch(lengths, seed=0, spread=0.4):
    """`logp` (a leaf), `old_logp`, advantages (B, T) and the mask."""
    generator = torch.Generator().manual_seed(seed)
    mask = mask_of(lengths)
    noise = torch.randn(3, *mask.shape, generator=generator)
    old_logp = -noise[0].abs() - 0.1
    logp = (old_logp + spread * noise[1]).clamp(max=-0.01).requires_grad_()
    return logp, old_logp, noise[2], mask


def weight_by(normaliser, mask, group=None, max_length=50):
    """The weight by any normaliser: one group if none are given."""
    group = torch.zeros(len(mask), dtype=torch.long) if group is None else group
    return normalisers.apply(normaliser, mask, group=group, max_length=max_length)


def loss_of(algorithm, logp, old_logp, advantages, mask, weight=None, **settings):
    """The loss with the paper's normaliser; where that is a constant, it is 50."""
    weight = weight_by(algorithm.normaliser, mask) if weight is None else weight
    batch = (logp, old_logp, advantages, mask, weight)
    return algorithm.policy_loss(*batch, **settings).loss


def loss_and_slope(algorithm, logp, *batch, **settings):
    """(loss, its gradient in log π_θ)"""
    loss = loss_of(algorithm, logp, *batch, **settings)
    return loss.detach(), grad(loss, logp)[0]


def at_ratios(algorithm, ratios, advantages, lengths=None, weight=None, **settings):
    """`loss_and_slope` at ratios (B, T), where π_old = 1."""
    logp = tensor(ratios).log().requires_grad_()
    mask = mask_of(lengths or [logp.shape[1]] * len(logp))
    batch = (logp, torch.zeros_like(logp), tensor(advantages), mask, weight)
    return loss_and_slope(algorithm, *batch, **settings)


def one_token(algorithm, advantage, ratio, **settings):
    """(objective, its gradient in log π_θ) at one token."""
    one = torch.ones(1, 1)
    loss, slope = at_ratios(algorithm, [[ratio]], [advantage], weight=one, **settings)
    return -loss.item(), -slope.item()
