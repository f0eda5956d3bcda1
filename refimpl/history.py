"""The record of a run: one row of plain numbers per rollout."""

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.checkpoint import write
from refimpl.importance import largest_deviation
from refimpl.rollout import Batch
from refimpl.validation import UserError, guarded, shown

TIMED = ("step_time",)
"""Columns that differ between identical runs; equality leaves them out."""
DEVIATION = "ratio/max_deviation"
TOTALS = ("num_tokens", "num_samples")
"""Columns that count from the start of the run."""


@dataclass(eq=False)
class History:
    """`history["reward"]` is a column, `history.rows[3]` a rollout.

    A value that does not exist (accuracy between evaluations, the length of wrong
    answers when none was wrong) is NaN in a column, None in a row, and empty in CSV.
    `model` is the trained policy, where the run is at hand. `ended` is what ended a run
    early, with a sentence as its message; None if nothing did.

    `samples` are responses of some rollouts (`TrainConfig.samples_every`), also of one
    that the run ended in: dictionaries of step, prompt, completion and reward. They are
    not in the CSV, and equality leaves them out.
    """

    algorithm: str
    rows: list[dict[str, float | None]] = field(default_factory=list)
    model: Any = field(default=None, repr=False)
    ended: BaseException | None = field(default=None, repr=False)
    samples: list[dict] = field(default_factory=list, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> list[float]:
        if self.rows and not any(name in row for row in self.rows):
            raise KeyError(f"no column {name!r}; there are: {', '.join(self.columns)}")
        column = [row.get(name) for row in self.rows]
        return [math.nan if value is None else value for value in column]

    def add(self, step: int, row: dict[str, float | None], seconds: float) -> None:
        """The row of rollout `step`, whose counts become those of the run."""
        before = self.rows[-1] if self.rows else dict.fromkeys(TOTALS, 0.0)
        for name in TOTALS:
            row[name] += before[name]
        self.rows.append(joined({"step": float(step)}, row, {"step_time": seconds}))

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in the order in which they came."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def accuracy(self) -> float:
        """The last held-out accuracy. Raises `UserError` if none was measured."""
        measured = [a for a in self["accuracy"] if not math.isnan(a)]
        if not measured:
            raise UserError(
                f"no accuracy was measured in {len(self)} rollouts: it is every "
                "`eval_every` rollouts, and at the end of a run"
            )
        return measured[-1]

    @guarded
    def reached(self, level: float, name: str = "accuracy") -> int | None:
        """Rollouts taken until `name` first reached `level`; None if it never did."""
        column = enumerate(self[name], start=1)
        return next((n for n, value in column if value >= level), None)

    @guarded
    def save(self, path: str | Path) -> None:
        """Write the rows as CSV, every digit of them; `History.load` reads it."""

        def text(name: str, value: Any) -> str:
            try:
                return "" if value is None else repr(float(value))
            except (TypeError, ValueError, RuntimeError):  # a hook wrote it
                raise UserError(
                    f"the history's column {name!r} must hold numbers, got "
                    f"{shown(value)}"
                ) from None

        def fill(file) -> None:
            writer = csv.DictWriter(file, ["algorithm", *self.columns])
            writer.writeheader()
            for row in self.rows:
                texts = {name: text(name, value) for name, value in row.items()}
                writer.writerow({"algorithm": self.algorithm, **texts})

        write(path, fill)

    @guarded
    def save_samples(self, path: str | Path) -> None:
        """Write the samples, one JSON object per line, in ASCII."""
        lines = [f"{json.dumps(sample)}\n" for sample in self.samples]
        write(path, "".join(lines))

    @staticmethod
    @guarded
    def load(path: str | Path) -> "History":
        """Read a CSV. Raises `UserError` if it is not one that `save` wrote."""
        try:
            with open(path, newline="", encoding="utf-8-sig") as file:  # Excel's BOM
                lines = list(csv.DictReader(file))
            (name,) = {line.pop("algorithm") for line in lines}
            rows = [
                {k: None if v == "" else float(v) for k, v in line.items()}
                for line in lines
            ]
        except (OSError, LookupError, ValueError, TypeError, csv.Error) as error:
            raise UserError(
                f"{path} is not a history written by History.save"
            ) from error
        return History(name, rows)

    def __eq__(self, other) -> bool:
        if not isinstance(other, History):
            return NotImplemented

        def untimed(rows):
            return [{k: v for k, v in r.items() if k not in TIMED} for r in rows]

        same = self.algorithm == other.algorithm
        return same and untimed(self.rows) == untimed(other.rows)

    __hash__ = None


# Metrics of micro-batches, and how they are reduced to one number per update. A plain
# tensor is a mean over the micro-batch's tokens; anything else says how it counts.

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


# The updates of a rollout

MAX_QUANTILE_INPUT = 2**24
"""The most numbers that `torch.quantile` takes; of more, a part is measured."""


class Meter:
    """Measurements of one rollout's updates, kept on the device until `read`.

    Each metric's type says how micro-batches combine (`refimpl.history`). Losses add
    up, and the largest deviation is a maximum.
    """

    def __init__(self) -> None:
        self.updates: list[dict[str, Float[Tensor, ""]]] = []
        self.log_ratios: list[Float[Tensor, " N"]] = []  # NaN outside the mask
        self.total: dict[str, Any] = {}  # of the update that is under way
        self.forwarded: Any = 0.0  # share of the tokens that went through the model
        self.over_forwarded: set[str] = set()  # metrics that are means over those

    @torch.no_grad()
    def add(self, part: Batch, logp: Tensor, loss: Tensor, metrics: Metrics) -> None:
        """Count a micro-batch of the update that is under way."""
        share = part.mask.sum().to(part.old_logp) / part.tokens
        self.forwarded = self.forwarded + share
        # Quantiles are of all response tokens, also those that have no loss.
        z = logp.detach() - part.old_logp
        outside = part.rollout.mask == 0
        self.log_ratios.append(z.masked_fill(outside, torch.nan).flatten())
        # Not a mean: the update's largest deviation is that of any micro-batch.
        largest = largest_deviation(torch.where(part.mask.bool(), z, 0.0))
        before = self.total.get(DEVIATION, largest)
        self.total[DEVIATION] = torch.maximum(largest, before)
        named = {n: x if isinstance(x, Mean) else Mean(x) for n, x in metrics.items()}
        # A critic's loss is added to the policy's for one backward pass, and taken off
        # again here.
        apart = sum(x.value for x in named.values() if isinstance(x, AuxiliaryLoss))
        named["loss"] = Share(loss.detach() - apart)
        for name, metric in named.items():
            self.total[name] = self.total.get(name, 0.0) + metric.counted(share)
        self.over_forwarded = {
            n for n, x in named.items() if isinstance(x, MeanOverForwarded)
        }

    def end_update(self, norm: Float[Tensor, ""]) -> None:
        """The step is taken; `norm` is the gradient's before it was clipped."""
        for name in self.over_forwarded:
            least = torch.finfo(self.total[name].dtype).tiny
            self.total[name] = self.total[name] / self.forwarded.clamp(min=least)
        self.updates.append({**self.total, "grad_norm": norm})
        self.total, self.forwarded = {}, 0.0

    def read(self) -> dict[str, float]:
        """Means over the updates, and quantiles of all their log-ratios, nats."""
        z, names = torch.cat(self.log_ratios), list(self.updates[0])
        values = torch.stack([u[n].to(z) for u in self.updates for n in names]).tolist()
        columns = {name: values[i :: len(names)] for i, name in enumerate(names)}
        means = {name: math.fsum(c) / len(c) for name, c in columns.items()}
        means[DEVIATION] = max(columns[DEVIATION])
        z = z[~z.isnan()].float().cpu()
        z = z[:: 1 + len(z) // MAX_QUANTILE_INPUT]
        low, middle, high = torch.quantile(z, z.new_tensor([0.01, 0.5, 0.99])).tolist()
        quantiles = {"q01": low, "q50": middle, "q99": high}
        return means | {f"log_ratio/{name}": value for name, value in quantiles.items()}
