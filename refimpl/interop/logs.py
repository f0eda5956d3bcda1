"""The log of a training run, by the names that this course uses.

Read are TRL's `trainer_state.json`, verl's file logger (JSON lines of step and data),
and JSON lines or CSV of their metrics or of ours (`History.save`).
What others call a column is a table, `names` in `symptoms.toml`.
"""

import csv
import json
import math
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from refimpl.validation import UserError

Row = dict[str, Any]

DATA = tomllib.loads(Path(__file__).with_name("symptoms.toml").read_text("utf-8"))
FEWEST = 4
"""Rows below which no end can be told from a beginning."""
EXPECTED = (
    "expected is TRL's trainer_state.json, verl's metrics as JSON lines, or a CSV with "
    "a line of names, among them reward or critic/score/mean"
)


class Log(NamedTuple):
    """Rows of plain numbers, one per logged step, and what the file calls a column.

    A number that is not there is None; one that is no number is NaN.
    """

    path: str
    steps: list[float]
    columns: dict[str, list[float | None]]
    called: dict[str, str]

    def seen(self, name: str) -> list[tuple[int, float]]:
        """The finite numbers of a column, with their rows."""
        cells = enumerate(self.columns.get(name, []))
        return [(i, x) for i, x in cells if x is not None and math.isfinite(x)]


def read(path: str | Path) -> Log:
    """The log at `path`; raises `UserError` with what was found, and what is needed."""
    try:
        text = Path(path).read_text("utf-8-sig")
        logged = [flat(row) for row in rows_of(text)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({error}); {EXPECTED}") from None
    if not logged and text.lstrip().startswith(("{", "[")):
        raise UserError(f"{path} holds no rows, or is JSON that is cut off; {EXPECTED}")
    called: dict[str, str] = {}
    names = dict.fromkeys(name for row in logged for name in row if name)
    for name in sorted(names, key=lambda name: ours(name) != name):  # its own first
        called.setdefault(ours(name), name)
    rows = [row for row in logged if number(row.get(called.get("reward"))) is not None]
    rows = in_order(rows, called.get("step"))
    if len(rows) < FEWEST:
        few = ", ".join([*called.values()][:8]) or "no names"
        raise UserError(
            f"{path} has {len(rows)} rows with a reward, of {len(logged)} (with {few}"
            f"), and {FEWEST} are the fewest that show a beginning and an end; "
            f"{EXPECTED}. Log more often (logging_steps=1), or name its columns so"
        )
    columns = {o: [number(row.get(name)) for row in rows] for o, name in called.items()}
    steps = columns.get("step", [None] * len(rows))
    given = {o: x for o, x in columns.items() if any(v is not None for v in x)}
    numbered = [float(i) if s is None else s for i, s in enumerate(steps)]
    return Log(str(path), numbered, given, called)


def rows_of(text: str) -> list[Row]:
    """The rows of a text in any of the formats; none if it has none of them."""
    whole: Any = parsed(text)
    if isinstance(whole, dict):
        whole = whole.get("log_history", [whole])
    elif whole is None and text.lstrip().startswith("{"):
        whole = [parsed(line) for line in text.splitlines()]
    elif whole is None:
        whole = table(text.splitlines())
    rows = whole if isinstance(whole, list) else []
    return [row for row in rows if isinstance(row, dict)]


def table(lines: list[str]) -> list[Row]:
    """The rows of a CSV, whose cells lie between what is most often in its first line:
    commas, semicolons or tabs."""
    sign = max(",;\t", key="".join(lines[:1]).count)
    rows = csv.DictReader(lines, delimiter=sign)
    return [{str(n).strip(): x for n, x in row.items() if n} for row in rows]


def in_order(rows: list[Row], name: str | None) -> list[Row]:
    """By step, where every row has one. Of rows with one step the last counts: a run
    that was resumed has logged some anew."""
    steps = [number(row.get(name)) for row in rows]
    if any(step is None or not math.isfinite(step) for step in steps):
        return rows
    last = dict(zip(steps, rows))
    return [last[step] for step in sorted(last)]  # type: ignore[type-var]


def parsed(text: str) -> Any:
    """Parse JSON; None for anything else, such as a line that was cut off."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def flat(row: Row) -> Row:
    """Without verl's envelope, and with the range of its scores."""
    if isinstance(row.get("data"), dict):
        row = {"step": row.get("step")} | row["data"]
    most, least = (number(row.get(f"critic/score/{x}")) for x in ("max", "min"))
    if most is None or least is None:
        return row
    return row | {"critic/score/range": most - least}


def ours(name: str) -> str:
    """The course's name for a column, if it has one."""
    name = str(name).removeprefix("train/")  # as W&B and TensorBoard show TRL's
    if name.startswith("val-core/") and "/mean@" in name:
        return "accuracy"  # verl's; the first of several is read
    return DATA["names"].get(name, name)


def number(value: Any) -> float | None:
    """A cell as a number; None where there is none."""
    try:
        return None if value in (None, "") else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
