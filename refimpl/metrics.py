"""How the metric of a micro-batch counts in that of its update.

What measures it says so: a loss means over its tokens, and gives plain numbers; terms
and corrections wrap what is something else. `history.Meter` adds them up.
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
    """Over tokens: it counts by the micro-batch's share of the mini-batch's tokens."""

    value: Float[Tensor, ""]

    def counted(self, share: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """What it adds to the mini-batch's."""
        return share * self.value


class MeanOfPassed(Mean):
    """Over the tokens that went through the model, which may be fewer than all."""


class Share(Mean):
    """Of the whole mini-batch: those of its micro-batches add up."""

    def counted(self, share: Float[Tensor, ""]) -> Float[Tensor, ""]:
        return self.value


def joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """A row of these. Raises `UserError` where two of them have one name, which is a
    metric of the reward's own then."""
    row: dict[str, Any] = {}
    for part in parts:
        if twice := row.keys() & part.keys():
            name = min(twice)
            raise UserError(f"log_metric: the history has a column {name!r} already")
        row |= part
    return row


class OwnLoss(Share):
    """A loss that is not the policy's: a history's `loss` leaves it out."""
