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

from refimpl.files import write
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
    """`history["reward"]` is a column, `history.rows[3]` the row of one rollout.

    A value that does not exist (accuracy between evaluations, the length of wrong
    answers when none was wrong) is NaN in a column, None in a row, and empty in CSV.
    `model` is the trained policy, None after `load`. `ended` is the
    exception that ended a run early, with a sentence as its message, or None.

    `samples` are responses of some rollouts (`hooks.Samples`), as
    dictionaries of step, prompt, completion and reward, also of a rollout in which the
    run ended. They are not part of the CSV or of equality.
    """

    algorithm: str
    rows: list[dict[str, float | None]] = field(default_factory=list)
    model: Any = field(default=None, repr=False)
    ended: BaseException | None = field(default=None, repr=False)
    samples: list[dict] = field(default_factory=list, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> list[float]:
        if name not in self.columns:
            raise KeyError(f"no column {name!r}; there are: {', '.join(self.columns)}")
        column = [row.get(name) for row in self.rows]
        return [math.nan if value is None else value for value in column]

    def add(self, step: int, row: dict[str, float | None], seconds: float) -> None:
        """Append the row of rollout `step`, and make its counts totals of the run."""
        before = self.rows[-1] if self.rows else dict.fromkeys(TOTALS, 0.0)
        for name in TOTALS:
            row[name] += before[name]
        self.rows.append(joined({"step": float(step)}, row, {"step_time": seconds}))

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in order of first appearance."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def accuracy(self) -> float:
        """The last held-out accuracy. Raises `UserError` if none was measured."""
        rows = [row.get("accuracy") for row in self.rows]
        measured = [accuracy for accuracy in rows if accuracy is not None]
        if not measured:
            raise UserError(
                f"no accuracy was measured in {len(self)} rollouts: that happens every "
                "`eval_every` rollouts, and at the end of a run"
            )
        return measured[-1]

    @guarded
    def save(self, path: str | Path) -> None:
        """Write the rows as CSV without rounding; `History.load` reads the file."""

        def text(name: str, value: Any) -> str:
            try:
                return "" if value is None else repr(float(value))
            except (TypeError, ValueError):
                message = f"column {name!r} must hold numbers, got {shown(value)}"
                raise UserError(message) from None

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
        except FileNotFoundError:
            raise UserError(f"{path} does not exist") from None
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


Metrics = dict[str, Float[Tensor, ""]]
"""Name → this micro-batch's part of the mini-batch's number: parts add up."""


class StalenessError(RuntimeError):
    """The ratio never left 1, so no clip or gate acted; carries the `history`."""

    history: History


def joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Join parts of a row. Raises `UserError` if a reward logs a metric of ours."""
    row: dict[str, Any] = {}
    for part in parts:
        if twice := row.keys() & part.keys():
            name = min(twice)
            raise UserError(f"log_metric: the history has a column {name!r} already")
        row |= part
    return row


def mean_over(x: Tensor, mask: Tensor) -> float:
    """Return the mean over response tokens of `x`, which is 0 outside the mask."""
    return (x.detach().sum() / mask.sum()).item()


def mean(x: Tensor) -> float | None:
    """Return the mean of a vector in double precision; None if it is empty."""
    return x.double().mean().item() if len(x) else None


# The updates of a rollout

MAX_QUANTILE_INPUT = 2**24
"""The most numbers that `torch.quantile` accepts; of more, a subset is used."""


class Meter:
    """Collects the metrics of one rollout's updates, on the device until `read`."""

    def __init__(self) -> None:
        self.updates: list[Metrics] = [{}]  # the last one is being made
        self.log_ratios: list[Float[Tensor, " N"]] = []  # NaN outside the mask

    @torch.no_grad()
    def add(self, part: Batch, logp: Tensor, loss: Tensor, metrics: Metrics) -> None:
        """Add a micro-batch to the current update: its numbers are parts of a sum."""
        # Quantiles cover all response tokens, even those filtered out of the loss.
        z = logp.detach() - part.old_logp
        outside = part.rollout.mask == 0
        self.log_ratios.append(z.masked_fill(outside, torch.nan).flatten())
        # The deviation shows the stalest token, which a mean would hide.
        largest = largest_deviation(torch.where(part.mask.bool(), z, 0.0))
        total = self.updates[-1]
        total[DEVIATION] = torch.maximum(largest, total.get(DEVIATION, largest))
        # A term that is not the policy's, as a critic's is not, has left out its part.
        loss = loss.detach() + metrics.get("loss", 0.0)
        for name, value in {**metrics, "loss": loss}.items():
            total[name] = total.get(name, 0.0) + value.detach()

    def end_update(self, norm: Float[Tensor, ""]) -> None:
        """Close the current update; `norm` is the gradient's norm before clipping."""
        self.updates[-1]["grad_norm"] = norm
        self.updates.append({})

    def read(self) -> dict[str, float]:
        """Return means over the updates, and quantiles of all log-ratios, nats."""
        # One transfer from the device, because each would make the CPU wait.
        z, updates = torch.cat(self.log_ratios), self.updates[:-1]
        names = list(updates[0])
        values = torch.stack([u[n].to(z) for u in updates for n in names]).tolist()
        columns = {name: values[i :: len(names)] for i, name in enumerate(names)}
        means = {name: math.fsum(c) / len(c) for name, c in columns.items()}
        means[DEVIATION] = max(columns[DEVIATION])
        z = z[~z.isnan()].float().cpu()
        # `torch.quantile` refuses longer input, so take every n-th token.
        z = z[:: 1 + len(z) // MAX_QUANTILE_INPUT]
        low, middle, high = torch.quantile(z, z.new_tensor([0.01, 0.5, 0.99])).tolist()
        quantiles = {"q01": low, "q50": middle, "q99": high}
        return means | {f"log_ratio/{name}": value for name, value in quantiles.items()}
