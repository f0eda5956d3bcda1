"""What every algorithm has in common: a loss is an objective times a weight.

    loss = − Σ_{i,t} weight_{i,t} · objective_{i,t}

An algorithm's own file states the objective. The weight is all that has to do with
averaging, made once per mini-batch by `refimpl.normalisers`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float, Real, Shaped
from pydantic import Field
from torch import Tensor

from refimpl import normalisers
from refimpl.arguments import guarded
from refimpl.importance import Mask, largest_deviation
from refimpl.settings import Keywords, Positive

EpsilonLow = Annotated[float, Field(gt=0, le=1)]  # 1 − ε is a ratio, never negative
EpsilonHigh = Positive
DualClip = Annotated[float, Field(gt=1)] | None


class Tokens(NamedTuple):
    """What an objective sees: all (B, T), floats, and finite everywhere.

    Outside the mask `logp`, `old_logp`, `advantages` and `weight` are 0. A gradient
    flows through `logp` alone.
    """

    logp: Float[Tensor, "B T"]
    old_logp: Float[Tensor, "B T"]
    advantages: Float[Tensor, "B T"]
    mask: Float[Tensor, "B T"]
    weight: Float[Tensor, "B T"]

    @property
    def z(self) -> Float[Tensor, "B T"]:
        """log π_θ − log π_old, nats."""
        z = self.logp - self.old_logp.detach()
        return torch.where(self.mask.bool(), z, 0.0)


class Objective(NamedTuple):
    """What an algorithm maximises at each token, and where its clip bites.

    **Contract.** `value` is (B, T), or (B, 1) where a response has one value for all
    its tokens; finite on every response token; and without a gradient where Â is 0.
    The trainer skips responses whose Â is 0 throughout, if that holds (it tries, see
    `Algorithm.acts_without_advantage`). The averaging is not its business.

    `low` marks tokens with Â < 0 whose ratio fell through the lower bound, `high`
    those with Â > 0 that rose through the upper one: the clips that stop a gradient
    ("sign-aware", as TRL and verl count). None for a method that has no such bound.
    """

    value: Float[Tensor, "B T"] | Float[Tensor, "B 1"]
    low: Bool[Tensor, "B T"] | None = None
    high: Bool[Tensor, "B T"] | None = None


class LossResult(NamedTuple):
    """`loss`: scalar to minimise. `metrics`: plain floats, named as in TRL."""

    loss: Float[Tensor, ""]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Algorithm:
    """One method: its objective, and what the trainer and the reader need beside it.

    **Fields:** `objective(tokens, **hyperparameters) -> Objective`, whose annotations
    say which values are allowed; `advantages`, from `refimpl.advantages`: called as
    f(rewards, group), with a critic as f(rewards, values, mask, γ, λ);
    `normaliser`, the paper's; `changed`, what is new against the parent; `critic`,
    whether advantages need a value function; `one_ratio`, whether a response has one
    ratio for all its tokens; `training`, the settings of `TrainConfig` that the paper
    makes part of the method.
    """

    name: str
    title: str
    paper: str
    parent: str | None
    changed: str
    objective: Callable[..., Objective]
    advantages: Callable
    normaliser: Callable
    trl: str
    verl: str
    critic: bool = False
    one_ratio: bool = False
    training: Mapping = field(default_factory=dict)

    @guarded
    def policy_loss(
        self,
        logp: Float[Tensor, "B T"],
        old_logp: Float[Tensor, "B T"],
        advantages: Real[Tensor, " B"] | Real[Tensor, "B T"],
        mask: Mask,
        weight: Shaped[Tensor, "B T"] | None = None,
        **hyperparameters,
    ) -> LossResult:
        """−Σ weight · objective: the loss of a mini-batch, or a slice's share in it.

        **Arguments:**

        - `logp`, `old_logp`: log-probs of the sampled tokens at the sampling
          temperature, nats. `old_logp` is a constant.
        - `advantages`: (B,), copied to every token, or (B, T).
        - `mask`: float, bool or int; 1 through EOS, 0 after.
        - `weight`: from `refimpl.normalisers`, made on the whole mini-batch; default:
          the paper's normaliser over this mask. Multiplied by a truncated importance
          weight (`importance.truncated_weight`) it corrects for a sampler that is not
          π_old.
        - `hyperparameters`: see `defaults`. `epsilon` sets both bounds of any method
          that has two.

        Raises `ValueError` on malformed tensors or values out of range, `TypeError`
        on an unknown hyperparameter.
        """
        given = self.check_hyperparameters(hyperparameters)
        tokens = _tokens(logp, old_logp, advantages, mask, weight, self.normaliser)
        objective = self.objective(tokens, **given)
        _check_objective(self.name, objective, tokens)
        # Outside the mask the value may be anything, and NaN · 0 is NaN.
        value = torch.where(tokens.mask.bool(), objective.value, 0.0)
        loss = -(value * tokens.weight).sum()
        return LossResult(loss, _metrics(objective, tokens))

    @property
    def defaults(self) -> MappingProxyType:
        """Hyperparameter → the paper's value, read off the objective's signature."""
        return self._keywords.defaults

    @property
    def names(self) -> tuple[str, ...]:
        """The hyperparameters; `epsilon` alone may stand for both bounds."""
        return tuple(self._keywords.annotations)

    @property
    def annotations(self) -> dict:
        """Hyperparameter → its type and range."""
        return self._keywords.annotations

    @cached_property
    def _keywords(self) -> Keywords:
        return Keywords(self.objective, self.name)

    def check_hyperparameters(self, given: Mapping) -> dict:
        """`given` as the objective takes it: plain values, `epsilon` as both bounds."""
        return self._keywords.check(given)

    def acts_without_advantage(self, **hyperparameters) -> bool:
        """Whether the objective has a gradient where Â = 0, tried on four tokens."""
        logp = torch.tensor([[-1.0, -0.2], [-0.5, -2.0]], requires_grad=True)
        zero, one = torch.zeros(2, 2), torch.ones(2, 2)
        old = torch.tensor([[-0.7, -0.5], [-0.5, -0.1]])
        tokens = Tokens(logp, old, zero, one, one)
        given = self.check_hyperparameters(hyperparameters)
        objective = self.objective(tokens, **given)
        _check_objective(self.name, objective, tokens)
        if not objective.value.requires_grad:
            return False
        (slope,) = torch.autograd.grad(objective.value.sum(), logp, allow_unused=True)
        return slope is not None and bool((slope != 0).any())


def stopped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple:
    """Where a one-sided clip to [low, high] takes the gradient: (below, above)."""
    return (advantages < 0) & (ratio < low), (advantages > 0) & (ratio > high)


def dual_clipped(value: Tensor, advantages: Tensor, dual_clip: float | None) -> Tensor:
    """max(value, c Â) where Â < 0 (1912.09729, Eq. 5); None: `value` itself."""
    if dual_clip is None:
        return value
    return torch.where(
        advantages < 0, torch.maximum(value, dual_clip * advantages), value
    )


def _tokens(logp, old_logp, advantages, mask, weight, normaliser) -> Tokens:
    """All as (B, T) floats, 0 outside the mask."""
    if advantages.ndim == 1:
        advantages = advantages.unsqueeze(-1).expand(logp.shape)
    wide, response = torch.promote_types(logp.dtype, torch.float32), mask.bool()
    if weight is None:
        weight = normalisers.apply(normaliser, mask.to(wide))
    every = logp, old_logp.detach(), advantages, weight
    logp, old, advantages, weight = (
        torch.where(response, tensor.to(wide), 0.0) for tensor in every
    )
    return Tokens(logp, old, advantages, mask.to(wide), weight)


def _check_objective(name: str, objective: Objective, tokens: Tokens) -> None:
    """Raise `ValueError` unless what `name` returned keeps the contract here."""
    shape = tuple(tokens.logp.shape)
    allowed = (shape, (shape[0], 1))
    if not isinstance(objective, Objective):
        raise ValueError(
            f"the objective of {name} must return an Objective(value, low, high), got "
            f"{type(objective).__name__}"
        )
    for part, found in objective._asdict().items():
        if found is None and part != "value":
            continue
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if got not in allowed:
            raise ValueError(
                f"the objective of {name} must have a {part} of shape (B, T) = {shape} "
                f"or (B, 1) = {allowed[1]}, got {got}"
            )
        if part != "value" and found.dtype != torch.bool:
            raise ValueError(
                f"the objective of {name} must mark tokens in {part} with True and "
                f"False, got {found.dtype}"
            )
    bad = ~torch.isfinite(objective.value) & tokens.mask.bool()
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(
            f"the objective of {name} is not finite at row {row}, token {column}, "
            f"where log r = {tokens.z[row, column].item():.3g}"
        )


@torch.no_grad()
def _metrics(objective: Objective, tokens: Tokens) -> dict[str, float]:
    response = tokens.mask.bool()
    count = response.sum().clamp(min=1)

    def share(hit: Tensor) -> float:
        return ((hit & response).sum() / count).item()

    largest = largest_deviation(tokens.logp, tokens.old_logp, tokens.mask)
    metrics = {"ratio/max_deviation": largest}
    if objective.low is None and objective.high is None:
        return metrics
    none = torch.zeros_like(response)
    low = none if objective.low is None else objective.low
    high = none if objective.high is None else objective.high
    return metrics | {
        "clip_ratio/low_mean": share(low),
        "clip_ratio/high_mean": share(high),
        "clip_ratio/region_mean": share(low | high),
    }
