"""Metrics of micro-batches, and how they are reduced to one number per update.

A plain tensor is a mean over the micro-batch's tokens. Terms and corrections wrap
anything else in a class that says how it counts. `history.Meter` adds them up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from refimpl.validation import UserError

Metrics = dict[str, Any]
"""By name, a tensor or one of these; a tensor stands for a `Mean`."""


@dataclass(frozen=True)
class Mean:
    """A mean over tokens, weighted by the micro-batch's share of the mini-batch's."""

    value: Float[Tensor, ""]

    def counted(self, share: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Its part of the mini-batch's number."""
        return share * self.value


class MeanOverForwarded(Mean):
    """A mean over the tokens that went through the model, perhaps fewer than all."""


class Share(Mean):
    """A share of the whole mini-batch: those of its micro-batches add up."""

    def counted(self, share: Float[Tensor, ""]) -> Float[Tensor, ""]:
        return self.value


def joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Join parts of a history's row.

    Raises `UserError` if two have the same name: then one is a reward's own metric.
    """
    row: dict[str, Any] = {}
    for part in parts:
        if twice := row.keys() & part.keys():
            name = min(twice)
            raise UserError(f"log_metric: the history has a column {name!r} already")
        row |= part
    return row


class AuxiliaryLoss(Share):
    """A loss that is not the policy's. The history's `loss` leaves it out."""


def mean_over(x: Tensor, mask: Tensor) -> float:
    """The mean of `x`, 0 outside the mask, over response tokens."""
    return (x.detach().sum() / mask.sum()).item()


def mean(x: Tensor) -> float | None:
    """The mean of a row in double precision; None if it is empty."""
    return x.double().mean().item() if len(x) else None
