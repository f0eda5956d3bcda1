"""What a run recorded: one row of plain numbers per rollout."""

import csv
import json
import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from refimpl.arguments import guarded
from refimpl.files import writable_file
from refimpl.settings import plain, shown

TIMED = ("step_time",)
"""Columns that differ between identical runs; equality leaves them out."""


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

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def accuracy(self) -> float:
        """The last held-out accuracy. Raises `ValueError` if none was measured."""
        measured = [a for a in self["accuracy"] if not math.isnan(a)]
        if not measured:
            raise ValueError(
                f"no accuracy was measured in {len(self)} rollouts: it is every "
                "`eval_every` rollouts, and at the end of a run"
            )
        return measured[-1]

    @guarded
    def reached(self, level: float, name: str = "accuracy") -> int | None:
        """Rollouts taken until `name` first reached `level`; None if it never did."""
        for i, value in enumerate(self[name]):
            if value >= level:
                return i + 1
        return None

    def __eq__(self, other) -> bool:
        if not isinstance(other, History):
            return NotImplemented

        def untimed(rows):
            return [{k: v for k, v in r.items() if k not in TIMED} for r in rows]

        same = self.algorithm == other.algorithm
        return same and untimed(self.rows) == untimed(other.rows)

    __hash__ = None

    @guarded
    def to_csv(self, path: str | Path) -> None:
        """Write every digit; `from_csv` gives an equal history back. Atomic."""
        path = writable_file(path, "the history")
        scratch = path.with_name(path.name + ".tmp")
        with open(scratch, "w", newline="") as file:
            writer = csv.DictWriter(file, ["algorithm", *self.columns])
            writer.writeheader()
            for row in self.rows:
                shown = {k: "" if v is None else repr(v) for k, v in row.items()}
                writer.writerow({"algorithm": self.algorithm, **shown})
        os.replace(scratch, path)

    @guarded
    def samples_to_jsonl(self, path: str | Path) -> None:
        """Write the samples, a JSON object a line, all but ASCII escaped. Atomic.

        A run without samples gives an empty file. Raises `ValueError` if `path` cannot
        be written to.
        """
        path = writable_file(path, "the samples")
        scratch = path.with_name(path.name + ".tmp")
        with open(scratch, "w", encoding="ascii", newline="\n") as file:
            file.writelines(f"{json.dumps(sample)}\n" for sample in self.samples)
        os.replace(scratch, path)

    @classmethod
    @guarded
    def from_csv(cls, path: str | Path) -> "History":
        """Raises `ValueError` if `path` is not a file that `to_csv` wrote."""
        try:
            with open(path, newline="") as file:
                lines = list(csv.DictReader(file))
            (name,) = {line.pop("algorithm") for line in lines}
            rows = [
                {k: None if v == "" else float(v) for k, v in line.items()}
                for line in lines
            ]
        except (OSError, LookupError, ValueError, TypeError, csv.Error) as error:
            raise ValueError(f"{path} is not a history written by to_csv") from error
        return cls(name, rows)


@guarded
def of_runs(values: Iterable[float], digits: Annotated[int, Field(ge=0)] = 2) -> str:
    """What several runs gave, as text: "0.94 (0.91 to 0.96, n = 3)".

    The median, then the lowest and the highest, then how many. NaN counts as no run.
    Raises `ValueError` if nothing is left.
    """
    given = [plain(value) for value in values]
    for value in given:
        if not isinstance(value, int | float):
            raise ValueError(f"values must be numbers, got {shown(value)} among them")
    values = sorted(float(v) for v in given if not math.isnan(v))
    if not values:
        raise ValueError("of_runs needs at least one number that is not NaN")
    low, middle, high = (
        f"{v:.{digits}f}" for v in (values[0], statistics.median(values), values[-1])
    )
    return f"{middle} ({low} to {high}, n = {len(values)})"
