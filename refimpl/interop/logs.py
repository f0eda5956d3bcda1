"""Read the log of a training run, and rename its columns to the names of this course.

Five forms are tried, and the one that yields the most rows is used: JSON (TRL's
`trainer_state.json`), JSON lines (verl's file logger, `History.save`), dictionaries as
TRL prints them, the lines that verl prints, and CSV (also W&B's and TensorBoard's). The
tables `names` and `patterns` in `symptoms.toml` translate the names of columns.
"""

import ast
import csv
import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from refimpl.validation import UserError

Row = dict[str, Any]

DATA = tomllib.loads(Path(__file__).with_name("symptoms.toml").read_text("utf-8"))
OURS = {other: ours for ours, others in DATA["names"].items() for other in others}
READ_BY_RULES = {check["of"] for row in DATA["row"] for check in row["checks"]}
SIGNALS = READ_BY_RULES - {"loss", "grad_norm", "entropy"}
"""The columns that supervised training does not log."""
FEWEST = 4
"""The fewest rows in which the beginning of a run can be told from its end."""
EXPECTED = (
    "expected: TRL's trainer_state.json, what TRL or verl prints, verl's metrics as "
    "JSON lines, or a CSV with a line of names, among them reward or critic/score/mean"
)
FLAT = re.compile(r"\{[^{}]*\}")
BARE = re.compile(r":\s*([\w.]+\([^()]*\)|-?(?:nan|inf)\b)")
"""A value that Python prints and does not read: np.float64(0.5), nan."""
CONSOLE = re.compile(r"\bstep:(\d+) - (.+)")
CALL = re.compile(r"[\w.]+\(([^(),]+)[^()]*\)")


class Log(NamedTuple):
    """A log as rows of numbers, one per logged step; `called` has the file's own names.

    A missing number is None; NaN and infinity stay as they are. If several columns mean
    accuracy, or are parts of a reward, each has a key of its own, such as "rewards: …".
    `notes` are sentences on what has not been read.
    """

    path: str
    steps: list[float]
    columns: dict[str, list[float | None]]
    called: dict[str, str]
    notes: tuple[str, ...] = ()

    def seen(self, key: str) -> list[tuple[int, float]]:
        """Return the finite numbers of a column, each with the index of its row."""
        cells = enumerate(self.columns.get(key, []))
        return [(i, x) for i, x in cells if x is not None and math.isfinite(x)]

    @property
    def whole(self) -> bool:
        """True if the first row is from the first steps of the run."""
        first, second = self.steps[:2]
        return first <= 2 * (second - first)

    def keys(self, of: str) -> list[str]:
        """Return the columns that a rule on `of` judges."""
        return [key for key in self.columns if key.partition(": ")[0] == of]


def read(path: str | Path) -> Log:
    """Read the log at `path`.

    Raises `UserError` if the file cannot be read, or has too few rows.
    """
    try:
        text = decoded(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error}); {EXPECTED}") from None
    logged = [flat(row, Path(path).name) for row in rows_of(text)]
    logged, notes = of_one_run(logged)
    called = named(dict.fromkeys(name for row in logged for name in row))
    known = [name for ours, name in called.items() if is_known(ours)]
    rows = [row for row in logged if any(number(row.get(n)) is not None for n in known)]
    rows = merged(rows, called.get("step"))
    columns = {o: [number(row.get(name)) for row in rows] for o, name in called.items()}
    given = {o: x for o, x in columns.items() if any(v is not None for v in x)}
    unset = [o for o in DATA["unset"]["columns"] if not any(given.get(o, []))]
    given = {o: x for o, x in given.items() if o not in unset}
    most = max((count(x) for o, x in given.items() if is_known(o, SIGNALS)), default=0)
    if most < FEWEST:
        few = ", ".join(name[:40] for name in [*called.values()][:8]) or "no names"
        raise UserError(
            f"{path} has {most} rows with a reward, an accuracy or a KL, but at least "
            f"{FEWEST} are needed to compare a run's end with its beginning; its "
            f"columns are {few}; {EXPECTED}"
        )
    steps = columns.get("step", [None] * len(rows))
    numbered = [float(i) if s is None else s for i, s in enumerate(steps)]
    return Log(str(path), numbered, given, called, notes)


def decoded(data: bytes) -> str:
    """Decode a file. PowerShell redirects what is printed as UTF-16."""
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return data.decode("utf-16" if wide else "utf-8-sig", errors="replace")


def rows_of(text: str) -> list[Row]:
    """Read a text in the form that gives the most rows with a column that only
    reinforcement learning logs."""
    forms = (as_json, as_json_lines, as_printed, as_verl_prints, as_table)
    readings = [[row for row in form(text) if isinstance(row, dict)] for form in forms]

    def useful(rows: list[Row]) -> tuple[int, bool]:
        names = [{ours(str(n)) for n in row | inner(row)} for row in rows]
        return sum(any(is_known(o, SIGNALS) for o in one) for one in names), bool(rows)

    return max(readings, key=useful)


def as_json(text: str) -> Iterable[Any]:
    """Read a JSON list of rows, a trainer's state, or an object of columns."""
    whole = parsed(text)
    if isinstance(whole, dict):
        lists = {n: x for n, x in whole.items() if isinstance(x, list)}
        if "log_history" not in whole and len(lists) > 1:
            longest = max(map(len, lists.values()))
            return [
                {n: x[i] for n, x in lists.items() if i < len(x)}
                for i in range(longest)
            ]
        whole = whole.get("log_history", [whole])
    return whole if isinstance(whole, list) else []


def as_json_lines(text: str) -> Iterator[Any]:
    return (parsed(line) for line in text.splitlines() if line.lstrip()[:1] == "{")


def as_printed(text: str) -> Iterator[Any]:
    """Read dictionaries without others inside, anywhere in other output."""
    for found in FLAT.findall(text):
        row = parsed(found)
        if row is None:
            try:
                row = ast.literal_eval(BARE.sub(r": '\1'", found))
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue
        yield row


def as_verl_prints(text: str) -> Iterator[Row]:
    """Read lines such as "step:3 - actor/entropy:0.4 - …"."""
    for step, rest in CONSOLE.findall(text):
        parts = [part.rpartition(":") for part in rest.split(" - ")]
        row = {name.strip(): value for name, _, value in parts}
        if row.get("actor/ppo_kl", "").strip("-") == "0.000":  # rounded to 3 digits
            del row["actor/ppo_kl"]
        yield {"step": step} | row


def as_table(text: str) -> list[Row]:
    """Read a CSV. Its separator is the most frequent of comma, semicolon, tab and bar
    in the first line."""
    lines = text.lstrip("\n").splitlines()
    sign = max(",;\t|", key="".join(lines[:1]).count)
    try:
        rows = [*csv.DictReader(lines, delimiter=sign)]
    except csv.Error:
        return []
    return [{str(n).strip(): x for n, x in row.items() if n} for row in rows]


def parsed(text: str) -> Any:
    """Parse JSON; None for other texts, such as a line that a kill has cut off."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def inner(row: Row) -> Row:
    return row["data"] if isinstance(row.get("data"), dict) else {}


def flat(row: Row, file: str) -> Row:
    """Unpack a row of verl's, add the range of its scores, read "5/200" as step 5, and
    name the one curve that TensorBoard exports, after the file."""
    row = {k: x for k, x in row.items() if k != "data"} | inner(row)
    step = row.get("global_step/max_steps")
    if isinstance(step, str):
        row["global_step/max_steps"] = step.partition("/")[0]
    if {*row} == {"Wall time", "Step", "Value"}:
        tag = re.search(r"tag-(?:train_)?(.+?)(?: \(\d+\))?\.csv$", file)
        row = {"step": row["Step"], tag[1] if tag else "Value": row["Value"]}
    most, least = (number(row.get(f"critic/score/{x}")) for x in ("max", "min"))
    if most is not None and least is not None:
        row["critic/score/range"] = most - least
    return row


def of_one_run(rows: list[Row]) -> tuple[list[Row], tuple[str, ...]]:
    """Keep the columns of the first run: W&B's export calls one "run - name", and its
    extremes "run - name__MIN"."""
    every = dict.fromkeys(n for row in rows for n in row if isinstance(n, str))
    runs = dict.fromkeys(n.rpartition(" - ")[0] for n in every if " - " in n)
    first, *others = runs or [""]
    kept = {n for n in every if n.rpartition(" - ")[0] in ("", first)}
    kept = {n for n in kept if not n.endswith(("__MIN", "__MAX"))}
    rows = [{n: x for n, x in row.items() if n in kept} for row in rows]
    if not others:
        return rows, ()
    return rows, (f"Of the {len(runs)} runs in this file only {first} is read.",)


def named(names: Iterable[str]) -> dict[str, str]:
    """Map our names to those of the file. If two mean the same column, ours has
    priority, then the one that comes first in `symptoms.toml`."""
    order = [*OURS]
    called: dict[str, str] = {}

    def rank(name: str) -> int:
        plain = bare(name)
        return -1 if plain not in OURS else order.index(plain)

    for name in sorted(names, key=rank):
        called.setdefault(ours(name), name)
    parts = [key for key in called if key.startswith("rewards: ")]
    if len(parts) == 1:  # it is the reward itself
        called.setdefault("reward", called.pop(parts[0]))
    return called


def bare(name: str) -> str:
    """Remove the run and the mode that W&B and TensorBoard put before a name."""
    return name.rpartition(" - ")[2].strip().removeprefix("train/").lower()


@cache
def ours(name: str) -> str:
    """Return the course's name for a column; the name itself if there is none."""
    plain = bare(name)
    for ours, pattern in DATA["patterns"].items():
        if plain not in OURS and plain != ours and re.fullmatch(pattern, plain):
            return f"{ours}: {plain}"
    return OURS.get(plain, plain)


def is_known(key: str, columns: Iterable[str] = READ_BY_RULES) -> bool:
    """True if a rule reads the column, or one of `columns` if they are given."""
    return key.partition(": ")[0] in columns


def merged(rows: list[Row], name: str | None) -> list[Row]:
    """Join the rows of each step, and sort them, if every row has a step.

    An evaluation has a row of its own. If a cell occurs twice, the last one counts,
    because a resumed run logs some steps again.
    """
    steps = [number(row.get(name)) for row in rows]
    if any(step is None or not math.isfinite(step) for step in steps):
        return rows
    joined: dict[Any, Row] = {}
    for step, row in zip(steps, rows):
        given = {n: x for n, x in row.items() if x not in (None, "")}
        joined[step] = joined.get(step, {}) | given
    return [joined[step] for step in sorted(joined)]


def count(cells: list[float | None]) -> int:
    return sum(x is not None for x in cells)


def number(value: Any) -> float | None:
    """Convert a cell to a number; None if it is empty or not a number."""
    if isinstance(value, str) and (call := CALL.fullmatch(value.strip())):
        value = call[1]
    try:
        return None if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
