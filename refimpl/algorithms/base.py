"""The common part of all algorithms: a loss is an objective times a weight.

    loss = − Σ_{i,t} weight_{i,t} · objective_{i,t}

An algorithm's file states the objective. Averaging happens in the weight alone, which
`refimpl.normalisers` computes once per mini-batch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Real, Shaped
from torch import Tensor

from refimpl import normalisers
from refimpl.importance import Mask, largest_deviation, log_ratio
from refimpl.validation import (
    UserError,
    checked,
    checker,
    guarded,
    refuse_unknown,
    shown,
)


class LossInputs(NamedTuple):
    """The arguments of `Algorithm.loss`, in its order, and the corrections' metrics."""

    logp: Float[Tensor, "B T"]
    old_logp: Float[Tensor, "B T"]
    advantages: Float[Tensor, "B T"]
    mask: Float[Tensor, "B T"]
    weight: Float[Tensor, "B T"]
    metrics: dict[str, Float[Tensor, ""]]

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The first five."""
        return self[:5]


@dataclass(frozen=True, eq=False)
class Tokens:
    """The arguments of an objective: all (B, T), floats, and finite everywhere.

    Outside the mask `logp`, `old_logp`, `advantages` and `weight` are 0. A gradient
    flows through `logp` alone.
    """

    logp: Float[Tensor, "B T"]
    old_logp: Float[Tensor, "B T"]
    advantages: Float[Tensor, "B T"]
    mask: Float[Tensor, "B T"]
    weight: Float[Tensor, "B T"]

    @cached_property
    def z(self) -> Float[Tensor, "B T"]:
        """log π_θ − log π_old, nats."""
        return log_ratio(self.logp, self.old_logp, self.mask)


class Objective(NamedTuple):
    """The value that an algorithm maximises at each token, and where its clip acts.

    **Contract.** `value` is (B, T), or (B, 1) where a response has one value for all
    its tokens; finite on every response token. A method may have a gradient where Â is
    0, as DRO's penalty has (`Algorithm.penalty`). For all other methods the trainer
    skips responses whose Â is 0 throughout. The value does not include averaging.

    `low` marks tokens below the lower bound, `high` those above the upper one, where
    the bound changes the gradient. For a one-sided clip ("sign-aware", as TRL and verl
    count) these are tokens with Â < 0 that fell and with Â > 0 that rose. For a bound
    that holds regardless of the sign (GLM-5, IPO, Kimi, CISPO's cap) these are all
    tokens beyond it. None if there is no bound.
    """

    value: Float[Tensor, "B T"] | Float[Tensor, "B 1"]
    low: Bool[Tensor, "B T"] | None = None
    high: Bool[Tensor, "B T"] | None = None


class LossResult(NamedTuple):
    """`loss`: scalar to minimise. `metrics`: plain floats, named as in TRL."""

    loss: Float[Tensor, ""]
    metrics: dict[str, float]


@checked
class Algorithm:
    """One method: its objective, and everything else that defines it."""

    name: str
    title: str
    paper: str
    parent: str | None
    changed: str  # the difference from the parent
    # f(tokens, **hyperparameters); the annotations define the allowed values
    objective: Callable[..., Objective]
    advantages: Callable  # f(scored) → (B,) or (B, T): see `advantages.py`
    normaliser: Callable  # the paper's
    critic: bool = False  # advantages need a value function
    one_ratio: bool = False  # a response has one ratio for all its tokens
    # Whether the objective has a gradient where Â = 0: the name of the hyperparameter
    # that scales this term, or True, or False. None: no, for a method of this package;
    # for yours it is assumed, which costs a pass at most
    penalty: str | bool | None = None
    # The log-probs that the trainer passes as `old_logp`. "old": those of π_old, or the
    # sampler's in their place if they differ little enough (`Run.old_logp_of`).
    # "sampler": those of the sampler, however far it is from the policy
    anchor: Literal["old", "sampler"] = "old"
    # Settings of `TrainConfig` that the paper makes part of the method
    training: Mapping = field(default_factory=dict)

    def child(self, *, name: str, title: str, changed: str, **replaced) -> "Algorithm":
        """Return this method with some fields replaced, under a new name."""
        own = {"name": name, "title": title, "changed": changed, **replaced}
        return replace(self, parent=self.name, **own)

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
        """Compute −Σ weight · objective, the loss of a mini-batch or a slice's share.

        **Arguments:**

        - `logp`, `old_logp`: log-probs of the sampled tokens at the sampling
          temperature, nats. A gradient flows through `logp` alone.
        - `advantages`: (B,), copied to every token, or (B, T).
        - `mask`: float, bool or int; 1 through EOS, 0 after.
        - `weight`: from `refimpl.normalisers`, made on the whole mini-batch; default:
          the paper's normaliser over this mask. `corrections.factor` times this
          corrects for a sampler that is not π_old.
        - `hyperparameters`: see `defaults`; `epsilon` sets both bounds at once.

        Raises `UserError` on malformed tensors, values out of range, or an unknown
        hyperparameter.
        """
        given = self.check_hyperparameters(hyperparameters)
        if weight is None:
            weight = normalisers.apply(self.normaliser, mask)
        tokens = as_tokens(logp, old_logp, advantages, mask, weight)
        if old_logp.requires_grad and not logp.requires_grad:
            raise UserError(
                "old_logp has a gradient and logp has none: they are swapped, or logp "
                "was detached"
            )
        now, old = (x[mask.bool()] for x in (tokens.logp, tokens.old_logp))
        above = [bool(x.any() and (x >= 0).all()) for x in (now, old)]
        # A router's shift may raise log-probs slightly above 0. Probabilities handed in
        # by mistake differ from log-probs by more, for p − log p ≥ 1.
        apart = now.any() and old.any() and (now - old).mean().abs() > 0.9
        if all(above) or (any(above) and apart):
            raise UserError(
                "logp and old_logp must be log-probs, ≤ 0: take the log of "
                "probabilities, or negate negative log-probs"
            )
        if (tokens.weight < 0).any():
            raise UserError("weight must be ≥ 0: the sign comes from the advantages")
        loss, metrics = weighted(self.checked_objective(tokens, given), tokens)
        metrics = {"ratio/max_deviation": largest_deviation(tokens.z), **metrics}
        return LossResult(loss, {name: value.item() for name, value in metrics.items()})

    def loss(
        self, logp, old_logp, advantages, mask, weight, **hyperparameters
    ) -> tuple[Float[Tensor, ""], dict[str, Any]]:
        """Compute `policy_loss` without checks, and keep the metrics as tensors."""
        tokens = as_tokens(logp, old_logp, advantages, mask, weight)
        objective = self.objective(tokens, **hyperparameters)
        check_shape(objective, tokens, self.name)  # another one would broadcast
        return weighted(objective, tokens)

    @cached_property
    def _keywords(self) -> list[Parameter]:
        given = signature(self.objective, eval_str=True).parameters.values()
        return [p for p in given if p.kind is p.KEYWORD_ONLY]

    @cached_property
    def defaults(self) -> Mapping:
        """Hyperparameter → the paper's value, from the objective's signature."""
        return MappingProxyType({p.name: p.default for p in self._keywords})

    @cached_property
    def annotations(self) -> dict:
        """Hyperparameter → its type and range; `epsilon` may stand for both bounds."""
        typed = {p.name: p.annotation for p in self._keywords}
        kinds = {n: Any if k is Parameter.empty else k for n, k in typed.items()}
        if {"epsilon_low", "epsilon_high"} <= kinds.keys():
            kinds.setdefault("epsilon", kinds["epsilon_low"])
        return kinds

    @cached_property
    def _checks(self) -> dict[str, Callable]:
        return {name: checker(name, kind) for name, kind in self.annotations.items()}

    def check_hyperparameters(self, given: Mapping) -> dict:
        """Convert `given` to the objective's arguments: plain values, both bounds.

        `epsilon` stands for both `epsilon_low` and `epsilon_high`.

        Raises `UserError` on an unknown name or a value out of range.
        """
        refuse_unknown(self.name, given, self.annotations)
        values = {name: self._checks[name](value) for name, value in given.items()}
        if "epsilon" in values and "epsilon" not in self.defaults:
            if "epsilon_low" in values:
                raise UserError("epsilon sets epsilon_low too: give one of them")
            epsilon = values.pop("epsilon")
            values = {"epsilon_low": epsilon, "epsilon_high": epsilon, **values}
        return values

    def checked_objective(self, tokens: Tokens, hyperparameters: Mapping) -> Objective:
        """Call the objective.

        Raises `UserError` on a wrong shape, a value that is not finite, or no gradient.
        """
        objective = self.objective(tokens, **hyperparameters)
        check_shape(objective, tokens, self.name)
        who = f"the objective of {self.name}"
        bad = ~objective.value.isfinite() & tokens.mask.bool()
        if bad.any():
            row, column = bad.nonzero()[0].tolist()
            raise UserError(
                f"{who} is not finite at row {row}, token {column}, where "
                f"logp − old_logp = {tokens.z[row, column].item():.3g}"
            )
        learns = torch.is_grad_enabled() and tokens.logp.requires_grad
        if learns and not objective.value.requires_grad and tokens.advantages.any():
            raise UserError(
                f"{who} has no gradient: it must depend on tokens.logp, without "
                "detaching it"
            )
        return objective


def as_tokens(logp, old_logp, advantages, mask, weight) -> Tokens:
    """Convert all arguments to (B, T) floats that are 0 outside the mask."""
    if advantages.ndim == 1:
        advantages = advantages[:, None]
    # Half precision cannot hold small log-ratios, and padding may hold NaN.
    dtype, response = torch.promote_types(logp.dtype, torch.float32), mask.bool()
    # A gradient through these would move a fixed π_old, or train on the advantages.
    constant = (x.detach() for x in (old_logp, advantages, weight))
    logp, old_logp, advantages, weight = (
        torch.where(response, x.to(dtype), 0.0) for x in (logp, *constant)
    )
    return Tokens(logp, old_logp, advantages, mask.to(dtype), weight)


def check_shape(objective: Objective, tokens: Tokens, name: str) -> None:
    """Raise `UserError` unless the value is (B, T) or (B, 1)."""
    rows, width = tokens.mask.shape
    value = getattr(objective, "value", None)
    if getattr(value, "shape", None) not in ((rows, width), (rows, 1)):
        raise UserError(
            f"the objective of {name} must be an Objective(value) of shape (B, T) = "
            f"{rows, width} or (B, 1) = {rows, 1}, got {shown(objective)}"
        )


def weighted(
    objective: Objective, tokens: Tokens
) -> tuple[Float[Tensor, ""], dict[str, Float[Tensor, ""]]]:
    """Compute − Σ weight · objective, and its metrics for the history."""
    low, high, response = objective.low, objective.high, tokens.mask.bool()
    # Outside the mask the value may be NaN, and NaN · 0 is NaN: select, not multiply.
    loss = -(torch.where(response, objective.value, 0.0) * tokens.weight).sum()
    if low is None and high is None:
        return loss, {}
    # A micro-batch may consist of filtered responses alone.
    count, none = response.sum().clamp(min=1), torch.zeros_like(response)
    low, high = none if low is None else low, none if high is None else high
    sides = {"low": low, "high": high, "region": low | high}.items()
    shares = {side: (hit & response).sum() / count for side, hit in sides}
    return loss, {f"clip_ratio/{side}_mean": share for side, share in shares.items()}
