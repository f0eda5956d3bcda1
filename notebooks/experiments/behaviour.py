"""A hash of the numbers that a method gives on fixed inputs, which names its formula.

The numbers are advantages, then a loss and ∂loss/∂log π for log-ratios of several
sizes, in float64. Code may be moved, renamed and rewritten without changing the hash.
A formula that gives other numbers has another hash.
"""

import hashlib
import json
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from refimpl import corrections, moe, normalisers
from refimpl.advantages import NAMED, Scored, gae, lam_by_length, whiten
from refimpl.algorithms import Algorithm, value_loss
from refimpl.config import TrainConfig
from refimpl.kl import k3
from refimpl.normalisers import NORMALISERS
from refimpl.options import with_critic

SIZES = (8e-4, 0.08, 0.8, 3.0)
"""The largest |log r| in nats: for GSPO's 3e-4, 0.03, token clips, CISPO's cap."""
BEYOND = 25.0
"""More than `LOG_RATIO_LIMIT`, but not by much: `half_open` draws from decimals of r,
which float64 does not have for large r."""
LONGEST = 8
"""The divisor of `normalisers.constant`, in tokens."""


class Inputs(NamedTuple):
    """Eight responses of 1 to 6 tokens in three groups, the last of equal rewards."""

    logp: Tensor
    z: Tensor
    """log-ratios of size 1"""
    rewards: Tensor
    """each at the last token of its response"""
    values: Tensor
    gamma: Tensor
    """a router shift"""
    mask: Tensor
    group: Tensor


def _inputs() -> Inputs:
    """Make the inputs by arithmetic that is exact on every processor. No z is 0."""
    length = torch.tensor([6, 3, 1, 5, 2, 4, 6, 2])
    earned = torch.tensor([1.0, 0.0, 0.3, 0.7, 1.0, 0.0, 0.0, 0.0]).double()
    column, n = torch.arange(6), torch.arange(48).view(8, 6)
    last = (column == length[:, None] - 1).double()
    return Inputs(
        logp=-(n * 29 % 53 + 1).double() / 20,
        z=((n * 37 % 101).double() - 50.25) / 51,
        rewards=last * earned[:, None],
        values=(n * 31 % 47).double() / 53,
        gamma=1 - (n * 43 % 59).double() / 200,
        mask=(column < length[:, None]).double(),
        group=torch.tensor([0, 0, 0, 1, 1, 1, 2, 2]),
    )


INPUTS = _inputs()


def behaviour(algorithm: Algorithm, config: TrainConfig, given: Inputs = INPUTS) -> str:
    """Hash the `answers` of an algorithm with these settings, as 16 hex digits."""
    every = [
        [rounded(x) for x in answer.flatten().tolist()]
        for answer in answers(algorithm, config, given)
    ]
    return hashlib.sha256(json.dumps(every).encode()).hexdigest()[:16]


def rounded(x: float) -> float:
    """Round to 7 decimals, or 8 digits from 1 on, where all processors agree."""
    return float(f"{x:.7f}" if abs(x) < 1 else f"{x:.8g}") + 0.0  # −0 becomes 0


def answers(algorithm: Algorithm, config: TrainConfig, given: Inputs) -> list[Tensor]:
    """Compute advantages, then losses with gradients, for log-ratios of several sizes.

    With a critic, its targets, loss and gradient come second. The last loss has
    advantages that differ from token to token.
    """
    config, z = config.completed(algorithm.training), given.z
    if config.advantage == "gae":
        algorithm = with_critic(algorithm)
    advantages, targets = _advantages(algorithm, config, given)
    every = [advantages]
    if targets is not None:
        every += [targets, *_critic(config, given, targets)]
    beyond = torch.where(z.abs() > 0.5, BEYOND * z.sign(), z)
    for log_ratio in (*(size * z for size in SIZES), beyond):
        every += _policy(algorithm, config, given, advantages, log_ratio)
    return every + _policy(algorithm, config, given, given.values - 0.45, 0.8 * z)


def _advantages(algorithm, config, given: Inputs) -> tuple[Tensor, Tensor | None]:
    """Compute advantages as the trainer does, and targets if there is a critic."""
    values = given.values if algorithm.critic else None
    estimator = NAMED.get(config.advantage, algorithm.advantages)
    lam = config.lam
    if config.lam_alpha is not None:
        lam = lam_by_length(given.mask, config.lam_alpha)
    scored = Scored(
        given.rewards,
        given.group,
        given.mask,
        values,
        config.gamma,
        lam,
        logp=given.logp,
        teacher_logp=given.logp + given.z.flip(0),
    )
    advantages = estimator(scored)
    if values is None:
        return advantages, None
    other = advantages
    if config.lam_critic is not None:
        other = gae(replace(scored, lam=config.lam_critic))
    whitened = whiten(advantages, given.mask) if config.whiten else advantages
    return whitened, other + values * given.mask


def _critic(config, given: Inputs, targets: Tensor) -> list[Tensor]:
    predicted = (given.values + 0.4 * given.z).requires_grad_()
    loss = value_loss(
        predicted, given.values, targets, given.mask, epsilon=config.value_clip
    )
    return [loss.detach(), *torch.autograd.grad(loss, predicted)]


def _policy(
    algorithm, config, given: Inputs, advantages: Tensor, log_ratio: Tensor
) -> list[Tensor]:
    """Compute the loss and ∂loss/∂log π, (B, T)."""
    mask, logp = given.mask, given.logp.clone().requires_grad_()
    old_logp, another = given.logp - log_ratio, given.logp + given.z.flip(0)
    normaliser = NORMALISERS.get(config.normaliser, algorithm.normaliser)
    weight = normalisers.apply(normaliser, mask, group=given.group, max_length=LONGEST)
    # Corrections change the method's loss, but not the KL.
    before, weighed = old_logp, weight
    if config.corrections:
        seen = given.logp, another, mask, advantages
        weighed = weight * corrections.factor(config.corrections, *seen)
    if config.router_shift:
        before, weighed = moe.shifted(
            old_logp, weighed, mask, given.gamma, one_ratio=algorithm.one_ratio
        )
    loss = algorithm.policy_loss(
        logp, before, advantages, mask, weighed, **config.hyperparameters
    ).loss
    if config.beta and config.kl_in == "loss":
        kl = k3(logp, another)
        loss = loss + config.beta * (kl * weight).sum()
    return [loss.detach(), *torch.autograd.grad(loss, logp)]
