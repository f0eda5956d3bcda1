"""What every algorithm has in common: check, weigh, aggregate, measure.

An algorithm is a per-token *objective* to maximise plus a way to average it. Its own
file states the objective; the rest of the road to a loss is here, once.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from refimpl.aggregation import AGGREGATIONS, aggregate
from refimpl.importance import (
    LOG_RATIO_LIMIT,
    log_ratio,
    sequence_log_ratio,
    truncated_weight,
)

PLACEMENTS = ("before_clip", "after_clip")


class Objective(NamedTuple):
    """What an algorithm maximises at each token, and where its clip bites.

    `low` marks tokens with A < 0 whose ratio fell through the lower bound, `high`
    those with A > 0 that rose through the upper one: the clips that stop a gradient
    ("sign-aware", as TRL and verl count). None for a method that has no such bound.
    """

    value: Float[Tensor, "B T"]
    low: Bool[Tensor, "B T"] | None = None
    high: Bool[Tensor, "B T"] | None = None


class LossResult(NamedTuple):
    """`loss`: scalar to minimise. `metrics`: plain floats, named as in TRL."""

    loss: Float[Tensor, ""]
    metrics: dict[str, float]


@dataclass(frozen=True)
class Algorithm:
    """One method: its objective, and what the trainer and the reader need beside it.

    **Fields:** `objective(logp, z, advantages, mask, **hyperparameters)` with z the
    log-ratio and advantages (B, T); `advantages`, from `refimpl.advantages`;
    `aggregation`, the paper's default; `changed`, what is new against the parent;
    `critic`, whether advantages need a value function; `one_ratio`, whether a response
    has one ratio for all its tokens; `training`, the settings of `TrainConfig` that the
    paper makes part of the method.
    """

    name: str
    title: str
    paper: str
    parent: str | None
    changed: str
    objective: Callable[..., Objective]
    advantages: Callable
    aggregation: str
    trl: str
    verl: str
    critic: bool = False
    one_ratio: bool = False
    training: Mapping = field(default_factory=dict)

    @property
    def defaults(self) -> MappingProxyType:
        """Hyperparameter → the paper's value, read off the objective's signature."""
        parameters = inspect.signature(self.objective).parameters.values()
        keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        return MappingProxyType({**keywords, "aggregation": self.aggregation})

    @property
    def names(self) -> tuple[str, ...]:
        """The hyperparameters; `epsilon` alone may stand for both bounds."""
        bounded = "epsilon_high" in self.defaults and "epsilon" not in self.defaults
        return (*self.defaults, *(["epsilon"] if bounded else []))

    def policy_loss(
        self,
        logp: Float[Tensor, "B T"],
        old_logp: Float[Tensor, "B T"],
        advantages: Float[Tensor, " B"] | Float[Tensor, "B T"],
        mask: Float[Tensor, "B T"],
        *,
        aggregation: str | None = None,
        group: Int[Tensor, " B"] | None = None,
        max_length: int | None = None,
        batch_tokens: float | None = None,
        batch_sequences: int | None = None,
        rollout_logp: Float[Tensor, "B T"] | None = None,
        max_rollout_weight: float = 2.0,
        router_shift: Float[Tensor, "B T"] | None = None,
        placement: str = "before_clip",
        detach_shift: bool = True,
        **hyperparameters,
    ) -> LossResult:
        """−aggregate(objective): the loss of one mini-batch, or its share in it.

        **Arguments:**

        - `logp`, `old_logp`: log-probs of the sampled tokens at the sampling
          temperature, nats; `mask`: 1 through EOS, 0 after.
        - `advantages`: (B,), copied to every token, or (B, T).
        - `aggregation`, `group`, `max_length`, `batch_tokens`, `batch_sequences`: see
          `refimpl.aggregation.aggregate`.
        - `rollout_logp`: the sampler's log-probs where it is not π_old; each token's
          objective is then weighed by min(π_old/π_rollout, `max_rollout_weight`).
        - `router_shift`: γ in (0, 1] for each token of a mixture of experts (RSPO). It
          multiplies the ratio `"before_clip"`, or `"after_clip"` the objective: γ_t
          that of its token, or, where a response has one ratio, the geometric mean of
          γ that of the response. A constant; `detach_shift=False` is there only to
          show what the paper warns of.
        - `hyperparameters`: see `defaults`. `epsilon` sets both bounds of any method
          that has two.

        Raises `ValueError` on malformed tensors or values out of range, `TypeError`
        on an unknown hyperparameter.
        """
        self.check_hyperparameters(hyperparameters)
        mask, advantages = _check_batch(logp, old_logp, advantages, mask, rollout_logp)
        z = log_ratio(logp, old_logp, mask)
        objective = self.shifted_objective(
            logp,
            z,
            advantages.to(z.dtype),
            mask.to(z.dtype),
            router_shift,
            placement,
            detach_shift,
            **hyperparameters,
        )
        value = objective.value
        if rollout_logp is not None:
            value = value * truncated_weight(
                old_logp, rollout_logp, mask, max_rollout_weight
            )
        loss = aggregate(
            -value,
            mask.to(z.dtype),
            aggregation or self.aggregation,
            group=group,
            max_length=max_length,
            batch_tokens=batch_tokens,
            batch_sequences=batch_sequences,
        )
        return LossResult(loss, _metrics(objective, z.detach(), mask))

    def shifted_objective(
        self,
        logp,
        z,
        advantages,
        mask,
        router_shift=None,
        placement="before_clip",
        detach_shift=True,
        **hyperparameters,
    ) -> Objective:
        """The objective with the router shift γ, if there is one, in its place."""
        hyperparameters = self._with_bounds(hyperparameters)
        if router_shift is None:
            return self.objective(logp, z, advantages, mask, **hyperparameters)
        shift = _log_shift(router_shift, mask, placement, detach_shift).to(z.dtype)
        if placement == "before_clip":  # r ← γ r
            return self.objective(logp, z + shift, advantages, mask, **hyperparameters)
        plain = self.objective(logp, z, advantages, mask, **hyperparameters)
        if self.one_ratio:  # one ratio a response, and so one γ: the geometric mean
            shift = sequence_log_ratio(shift, mask)[:, None].expand_as(z)
        return plain._replace(value=plain.value * shift.exp())

    def _with_bounds(self, given: dict) -> dict:
        """`epsilon` written out as both bounds, where the method knows only those."""
        if "epsilon" not in given or "epsilon" in self.defaults:
            return given
        epsilon = given["epsilon"]
        rest = {k: v for k, v in given.items() if k != "epsilon"}
        return {"epsilon_low": epsilon, "epsilon_high": epsilon, **rest}

    def check_hyperparameters(self, given: dict) -> None:
        """Raise `TypeError` naming the nearest name if one of `given` is unknown."""
        for name in given:
            if name not in self.names:
                raise TypeError(
                    f"{self.name} has no hyperparameter {name!r}"
                    f"{nearest(name, self.names)}; it has: "
                    f"{', '.join(self.names)}"
                )
        how = given.get("aggregation", self.aggregation)
        if how not in AGGREGATIONS:
            raise ValueError(
                f"unknown aggregation {how!r}{nearest(how, AGGREGATIONS)}; "
                f"one of: {', '.join(AGGREGATIONS)}"
            )


def nearest(name: str, known) -> str:
    """', did you mean …?' for an error message, or nothing."""
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


def clip_bounds(
    epsilon: float, epsilon_low: float | None, epsilon_high: float | None
) -> tuple[float, float]:
    """ε below and above 1; `epsilon` stands in for a side not given.

    Raises `ValueError` if a bound is not positive, or the lower one is above 1 (a
    ratio is never negative).
    """
    low = epsilon if epsilon_low is None else epsilon_low
    high = epsilon if epsilon_high is None else epsilon_high
    for name, value in (
        ("epsilon_low (or epsilon)", low),
        ("epsilon_high (or epsilon)", high),
        ("epsilon", epsilon),
    ):
        if not value > 0:
            raise ValueError(
                f"{name} must be > 0, got {value}: with no room to "
                "move, the clip stops every update after the first"
            )
    if low > 1:
        raise ValueError(
            f"epsilon_low must be ≤ 1, got {low}: the lower bound 1 − ε_low would be "
            "negative. The bounds are distances from 1, not absolute ratios"
        )
    return low, high


def _check_batch(
    logp, old_logp, advantages, mask, rollout_logp=None
) -> tuple[Tensor, Tensor]:
    """`mask` as it is and `advantages` as (B, T), or a `ValueError` that says why."""
    shape = tuple(logp.shape)
    if len(shape) != 2:
        raise ValueError(f"logp must have shape (B, T), got {shape}")
    rollout_logp = old_logp if rollout_logp is None else rollout_logp
    for name, tensor in (
        ("old_logp", old_logp),
        ("mask", mask),
        ("rollout_logp", rollout_logp),
    ):
        if tuple(tensor.shape) != shape:
            raise ValueError(
                f"{name} must have logp's shape {shape}, got {tuple(tensor.shape)}"
            )
    if not ((mask == 0) | (mask == 1)).all():
        raise ValueError("mask must hold only 0 and 1: 1 on response tokens, EOS in")
    if tuple(advantages.shape) not in (shape[:1], shape):
        raise ValueError(
            f"advantages must have shape (B,) = {shape[:1]} or (B, T) = {shape}, got "
            f"{tuple(advantages.shape)}"
        )
    if advantages.ndim == 1:
        advantages = advantages.unsqueeze(-1).expand(shape)
    response = mask.bool()
    for name, tensor in (
        ("logp", logp),
        ("old_logp", old_logp),
        ("rollout_logp", rollout_logp),
        ("advantages", advantages),
    ):
        bad = ~torch.isfinite(tensor) & response
        if bad.any():
            row, column = bad.nonzero()[0].tolist()
            raise ValueError(
                f"{name} is {tensor[row, column].item()} at row {row}, token {column}: "
                "the model has diverged, or the mask covers padding"
            )
    return mask, torch.where(response, advantages, 0.0)


def _log_shift(router_shift, mask, placement: str, detach: bool) -> Tensor:
    """log γ, 0 outside the response; `ValueError` if γ cannot be a router shift."""
    if placement not in PLACEMENTS:
        raise ValueError(f"placement must be one of {PLACEMENTS}, got {placement!r}")
    if router_shift.shape != mask.shape:
        raise ValueError(
            f"router_shift must have logp's shape {tuple(mask.shape)}, got "
            f"{tuple(router_shift.shape)}"
        )
    gamma = torch.where(mask.bool(), router_shift, 1.0)
    if not ((gamma > 0) & (gamma <= 1 + 1e-6)).all():
        raise ValueError(
            "router_shift must lie in (0, 1]: exp of minus a drift, above a floor > 0"
        )
    return (gamma.detach() if detach else gamma).log()


@torch.no_grad()
def _metrics(objective: Objective, z: Tensor, mask: Tensor) -> dict[str, float]:
    response = mask.bool()
    count = response.sum().clamp(min=1)

    def share(hit: Tensor) -> float:
        return ((hit & response).sum() / count).item()

    held = z.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)  # as `ratio` does
    metrics = {"ratio/max_deviation": torch.expm1(held).abs().max().item()}
    none = torch.zeros_like(response)
    low = none if objective.low is None else objective.low.expand_as(response)
    high = none if objective.high is None else objective.high.expand_as(response)
    if objective.low is not None or objective.high is not None:
        metrics["clip_ratio/low_mean"] = share(low)
        metrics["clip_ratio/high_mean"] = share(high)
        metrics["clip_ratio/region_mean"] = share(low | high)
    return metrics
