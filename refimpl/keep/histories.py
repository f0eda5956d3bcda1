"""A history as CSV, to the last digit, and its samples as JSON lines."""

import csv
import json
from pathlib import Path
from typing import Any

from refimpl.history import History
from refimpl.keep.files import writable_file, write
from refimpl.validation import UserError, guarded, shown


@guarded
def to_csv(history: History, path: str | Path) -> None:
    """Write every digit; `from_csv` gives an equal history back."""

    def fill(file) -> None:
        writer = csv.DictWriter(file, ["algorithm", *history.columns])
        writer.writeheader()
        for row in history.rows:
            texts = {name: _text(name, value) for name, value in row.items()}
            writer.writerow({"algorithm": history.algorithm, **texts})

    write(writable_file(path, "the history"), fill)


@guarded
def from_csv(path: str | Path) -> History:
    """Raises `UserError` if `path` is not a file that `to_csv` wrote."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:  # Excel's BOM
            lines = list(csv.DictReader(file))
        (name,) = {line.pop("algorithm") for line in lines}
        rows = [
            {k: None if v == "" else float(v) for k, v in line.items()}
            for line in lines
        ]
    except (OSError, LookupError, ValueError, TypeError, csv.Error) as error:
        raise UserError(f"{path} is not a history written by to_csv") from error
    return History(name, rows)


def _text(name: str, value: Any) -> str:
    """A number with every digit; `UserError` if a hook wrote something else."""
    try:
        return "" if value is None else repr(float(value))
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"the history's column {name!r} must hold numbers, got {shown(value)}"
        ) from None


@guarded
def samples_to_jsonl(history: History, path: str | Path) -> None:
    """Write the samples, a JSON object a line, all but ASCII escaped.

    A run without samples gives an empty file. Raises `UserError` if `path` cannot
    be written to.
    """
    lines = [f"{json.dumps(sample)}\n" for sample in history.samples]
    write(writable_file(path, "the samples"), lambda file: file.writelines(lines))
