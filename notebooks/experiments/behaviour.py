"""What a method answers on fixed inputs, as a hash: the formula's name.

Advantages, then a loss and ∂loss/∂log π for log-ratios of several sizes, in float64.
The hash knows numbers only, so code may be moved, renamed and rewritten; a formula
that gives another number has another name.
"""

import hashlib
import json
from typing import NamedTuple

import torch
from torch import Tensor

from refimpl import corrections, moe, normalisers
from refimpl.advantages import CRITIC_FREE, Scored, whiten
from refimpl.algorithms import Algorithm, value_loss
from refimpl.config import TrainConfig
from refimpl.kl import ESTIMATORS
from refimpl.normalisers import NORMALISERS

SIZES = (8e-4, 0.08, 0.8, 3.0)
"""The largest |log r|, nats: for GSPO's 3e-4, 0.03, token clips, CISPO's cap."""
BEYOND = 25.0
"""More than `LOG_RATIO_LIMIT`. (Not much less: `half_open` tosses its coin by decimals
of r that no float64 has where r is large.)"""
LONGEST = 8
"""Tokens, the divisor of `normalisers.constant`."""


class Inputs(NamedTuple):
    """Eight responses of 1 to 6 tokens in three groups, the last of equal rewards."""

    logp: Tensor
    z: Tensor
    """log-ratios of size 1"""
    rewards: Tensor
    """each at its response's last token"""
    values: Tensor
    gamma: Tensor
    """a router shift"""
    mask: Tensor
    group: Tensor


def _inputs() -> Inputs:
    """Made by arithmetic that every processor does alike; no z is 0."""
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
    """16 hex digits of all that `algorithm` answers with the settings of `config`."""
    every = [
        [rounded(x) for x in answer.flatten().tolist()]
        for answer in answers(algorithm, config, given)
    ]
    return hashlib.sha256(json.dumps(every).encode()).hexdigest()[:16]


def rounded(x: float) -> float:
    """7 decimals, or 8 digits from 1 on: no processor differs there. 0 has no sign."""
    return float(f"{x:.7f}" if abs(x) < 1 else f"{x:.8g}") + 0.0


def answers(algorithm: Algorithm, config: TrainConfig, given: Inputs) -> list[Tensor]:
    """Advantages (of a critic targets, loss and slope, too), then losses and slopes.

    The last loss is that of advantages which differ from token to token.
    """
    config, z = config.completed(algorithm.training), given.z
    advantages, targets = _advantages(algorithm, config, given)
    every = [advantages]
    if targets is not None:
        every += [targets, *_critic(config, given, targets)]
    beyond = torch.where(z.abs() > 0.5, BEYOND * z.sign(), z)
    for log_ratio in (*(size * z for size in SIZES), beyond):
        every += _policy(algorithm, config, given, advantages, log_ratio)
    return every + _policy(algorithm, config, given, given.values - 0.45, 0.8 * z)


def _advantages(algorithm, config, given: Inputs) -> tuple[Tensor, Tensor | None]:
    """As the trainer asks for them; targets where there is a critic."""
    values = given.values if algorithm.critic else None
    estimator = CRITIC_FREE.get(config.advantage, algorithm.advantages)
    advantages = estimator(
        Scored(given.rewards, given.group, given.mask, values, config.gamma, config.lam)
    )
    if values is None:
        return advantages, None
    return whiten(advantages, given.mask), advantages + values * given.mask


def _critic(config, given: Inputs, targets: Tensor) -> list[Tensor]:
    predicted = (given.values + 0.4 * given.z).requires_grad_()
    loss = value_loss(
        predicted, given.values, targets, given.mask, epsilon=config.value_clip
    )
    return [loss.detach(), *torch.autograd.grad(loss, predicted)]


def _policy(
    algorithm, config, given: Inputs, advantages: Tensor, log_ratio: Tensor
) -> list[Tensor]:
    """The loss and ∂loss/∂log π, (B, T)."""
    mask, logp = given.mask, given.logp.clone().requires_grad_()
    old_logp, another = given.logp - log_ratio, given.logp + given.z.flip(0)
    normaliser = NORMALISERS.get(config.normaliser, algorithm.normaliser)
    weight = normalisers.apply(normaliser, mask, group=given.group, max_length=LONGEST)
    before, weighed = old_logp, weight  # of the method's own loss, not of the KL
    if config.corrections:
        seen = given.logp, another, mask, advantages
        weighed = weight * corrections.factor(config.corrections, *seen)
    if config.router_shift:
        before, weighed = moe.shifted(
            old_logp, weighed, mask, given.gamma, config.placement, algorithm.one_ratio
        )
    loss = algorithm.policy_loss(
        logp, before, advantages, mask, weighed, **config.hyperparameters
    ).loss
    if config.beta and config.kl_in == "loss":
        kl = ESTIMATORS[config.kl_estimator](logp, another, old_logp)
        loss = loss + config.beta * (kl * weight).sum()
    return [loss.detach(), *torch.autograd.grad(loss, logp)]
