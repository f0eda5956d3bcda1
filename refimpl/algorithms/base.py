"""What every algorithm has in common: a loss is an objective times a weight.

    loss = − Σ_{i,t} weight_{i,t} · objective_{i,t}

An algorithm's file states the objective. The weight is all that has to do with
averaging, made once per mini-batch by `refimpl.normalisers`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Real, Shaped
from torch import Tensor

from refimpl import normalisers
from refimpl.checks import Keywords, UserError, guarded
from refimpl.importance import Mask, largest_deviation


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
        return torch.where(self.mask.bool(), self.logp - self.old_logp.detach(), 0.0)


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
    say which values are allowed; `advantages(scored) -> (B,) or (B, T)`, from
    `refimpl.advantages`; `normaliser`, the paper's; `changed`, what is new against the
    parent; `critic`, whether advantages need a value function; `one_ratio`, whether a
    response has one ratio for all its tokens; `surrogate`, whether the objective is a
    function of the ratio and Â (else log π stands in it, and its value means nothing);
    `training`, the settings of `TrainConfig` that the paper makes part of the method.
    """

    name: str
    title: str
    paper: str
    parent: str | None
    changed: str
    objective: Callable[..., Objective]
    advantages: Callable
    normaliser: Callable
    critic: bool = False
    one_ratio: bool = False
    surrogate: bool = True
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

        Raises `UserError` on malformed tensors, values out of range, or an unknown
        hyperparameter.
        """
        given = self.check_hyperparameters(hyperparameters)
        if weight is None:
            weight = normalisers.apply(self.normaliser, mask)
        self.check_objective(logp, old_logp, advantages, mask, weight, given)
        loss, metrics = self.loss(logp, old_logp, advantages, mask, weight, **given)
        return LossResult(loss, {name: value.item() for name, value in metrics.items()})

    def loss(
        self, logp, old_logp, advantages, mask, weight, **hyperparameters
    ) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
        """`policy_loss` behind the door: nothing is asked, metrics stay tensors."""
        tokens = as_tokens(logp, old_logp, advantages, mask, weight)
        objective = self.objective(tokens, **hyperparameters)
        # Outside the mask the value may be anything, and NaN · 0 is NaN.
        value = torch.where(tokens.mask.bool(), objective.value, 0.0)
        return -(value * tokens.weight).sum(), _metrics(objective, tokens)

    @property
    def defaults(self) -> Mapping:
        """Hyperparameter → the paper's value, read off the objective's signature."""
        return self._keywords.defaults

    @property
    def annotations(self) -> dict:
        """Hyperparameter → its type and range; `epsilon` may stand for both bounds."""
        return self._keywords.annotations

    @cached_property
    def _keywords(self) -> Keywords:
        return Keywords(self.objective, self.name)

    def check_hyperparameters(self, given: Mapping) -> dict:
        """`given` as the objective takes it: plain values, `epsilon` as both bounds."""
        return self._keywords.check(given)

    def check_objective(self, logp, old_logp, advantages, mask, weight, given) -> None:
        """Raise `UserError` unless what the objective returns keeps its contract."""
        tokens = as_tokens(logp.detach(), old_logp, advantages, mask, weight)
        objective, shape = self.objective(tokens, **given), tuple(logp.shape)
        if not isinstance(objective, Objective):
            raise UserError(
                f"the objective of {self.name} must return an Objective(value, low, "
                f"high), got {type(objective).__name__}"
            )
        for part, x in objective._asdict().items():
            if x is None and part != "value":
                continue
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            if got not in (shape, (shape[0], 1)):
                raise UserError(
                    f"the objective of {self.name} must have a {part} of shape (B, T) "
                    f"= {shape} or (B, 1) = {(shape[0], 1)}, got {got}"
                )
            if part != "value" and x.dtype != torch.bool:
                raise UserError(
                    f"the objective of {self.name} must mark tokens in {part} with "
                    f"True and False, got {x.dtype}"
                )
        bad = ~torch.isfinite(objective.value) & tokens.mask.bool()
        if bad.any():
            row, column = bad.nonzero()[0].tolist()
            raise UserError(
                f"the objective of {self.name} is not finite at row {row}, token "
                f"{column}, where log r = {tokens.z[row, column].item():.3g}"
            )

    def acts_without_advantage(self, **hyperparameters) -> bool:
        """Whether the objective has a gradient where Â = 0, tried on four tokens.

        Raises `UserError` if it does not keep its contract there.
        """
        logp = torch.tensor([[-1.0, -0.2], [-0.5, -2.0]], requires_grad=True)
        old = torch.tensor([[-0.7, -0.5], [-0.5, -0.1]])
        zero, one = torch.zeros(2, 2), torch.ones(2, 2)
        self.check_objective(logp, old, zero, one, one, hyperparameters)
        loss, _ = self.loss(logp, old, zero, one, one, **hyperparameters)
        if not loss.requires_grad:
            return False
        (slope,) = torch.autograd.grad(loss, logp, allow_unused=True)
        return slope is not None and bool((slope != 0).any())


def stopped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple:
    """Where a one-sided clip to [low, high] takes the gradient: (below, above)."""
    return (advantages < 0) & (ratio < low), (advantages > 0) & (ratio > high)


def as_tokens(logp, old_logp, advantages, mask, weight) -> Tokens:
    """All as (B, T) floats, 0 outside the mask."""
    if advantages.ndim == 1:
        advantages = advantages.unsqueeze(-1).expand(logp.shape)
    wide, response = torch.promote_types(logp.dtype, torch.float32), mask.bool()
    logp, old_logp, advantages, weight = (
        torch.where(response, tensor.to(wide), 0.0)
        for tensor in (logp, old_logp.detach(), advantages, weight)
    )
    return Tokens(logp, old_logp, advantages, mask.to(wide), weight)


@torch.no_grad()
def _metrics(objective: Objective, tokens: Tokens) -> dict[str, Float[Tensor, ""]]:
    metrics = {"ratio/max_deviation": largest_deviation(tokens.z)}
    if objective.low is None and objective.high is None:
        return metrics
    response = tokens.mask.bool()
    count, none = response.sum().clamp(min=1), torch.zeros_like(response)
    low = none if objective.low is None else objective.low
    high = none if objective.high is None else objective.high
    clipped = {"low": low, "high": high, "region": low | high}
    return metrics | {
        f"clip_ratio/{side}_mean": (hit & response).sum() / count
        for side, hit in clipped.items()
    }
