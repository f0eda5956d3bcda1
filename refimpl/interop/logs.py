"""Read the log of a training run, and rename its columns to the names of this course.

Five forms are tried, and the one that yields the most rows is used: JSON (TRL's
`trainer_state.json`), JSON lines (verl's file logger, tinker's, `History.save`),
dictionaries as TRL, OpenRLHF, slime and miles print them, the lines that verl prints,
and tables (CSV, also W&B's, and what TRL shows in a notebook). The
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
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from refimpl.validation import UserError

Row = dict[str, Any]

DATA = tomllib.loads(Path(__file__).with_name("symptoms.toml").read_text("utf-8"))
OURS = {other: ours for ours, others in DATA["names"].items() for other in others}
RANK = {other: place for place, other in enumerate(OURS)}
KNOWN = OURS.keys() | DATA["names"].keys()
READ_BY_RULES = {one["of"] for row in DATA["row"] for one in row.get("checks", [])}
SIGNALS = READ_BY_RULES - {"loss", "grad_norm", "entropy"}
"""The columns that supervised training does not log."""
FEWEST = 4
"""The fewest rows in which the beginning of a run can be told from its end."""
EXPECTED = (
    "expected: TRL's trainer_state.json, what TRL or verl prints, JSON lines, or a CSV "
    "with a line of names, such as reward, and numbers such as 0.5 (a point, not 0,5)"
)
FLAT = re.compile(r"(?:\b(\w+) (\d+): *)?(\{[^{}]*\})")
"""A dictionary, and what may number it: "rollout 7: {…}", "Global step 7: {…}"."""
BARE = re.compile(r":\s*([\w.]+\([^()]*\)|-?(?:nan|inf)\b)")
"""A value that Python prints and does not read: np.float64(0.5), nan."""
CONSOLE = re.compile(r"\bstep:(\d+) - (.+)")
MEAN = re.compile(r"^(mean|avg|average)_|[/_](mean|avg)$")
CALL = re.compile(r"[\w.]+\(([^(),]+)[^()]*\)")


class Log(NamedTuple):
    """A log as rows of numbers, one per logged step; `called` has the file's own names.

    A missing number is None; NaN and infinity stay as they are. If several columns mean
    accuracy, or are parts of a reward, each has a key of its own, such as "rewards: …".
    """

    path: str
    steps: list[float]
    columns: dict[str, list[float | None]]
    called: dict[str, str]

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
        data = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error}); {EXPECTED}") from None
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # what PowerShell redirects
    text = data.decode("utf-16" if wide else "utf-8-sig", errors="replace")
    if "\0" in text:
        raise UserError(f"{path} is a binary file; {EXPECTED}")
    logged = rows_of(text)
    called = named(dict.fromkeys(name for row in logged for name in row))
    known = [name for ours, name in called.items() if is_known(ours)]
    rows = [row for row in logged if any(number(row.get(n)) is not None for n in known)]
    rows = merged(rows)
    cells = {o: [number(row.get(name)) for row in rows] for o, name in called.items()}
    cells = {o: x for o, x in cells.items() if x.count(None) < len(x)}
    columns = {o: x for o, x in cells.items() if any(x) or o not in DATA["unset"]}
    seen = [len(x) - x.count(None) for o, x in columns.items() if is_known(o, SIGNALS)]
    if (most := max(seen, default=0)) < FEWEST:
        few = ", ".join(name[:40] for name in [*called.values()][:8]) or "no names"
        raise UserError(
            f"{path} has {most} rows with a reward, an accuracy or a KL, but at least "
            f"{FEWEST} are needed to compare a run's end with its beginning; its "
            f"columns are {few}; {EXPECTED}"
        )
    steps = columns.get("step", [None] * len(rows))
    numbered = [float(i) if s is None else s for i, s in enumerate(steps)]
    return Log(str(path), numbered, columns, called)


def rows_of(text: str) -> list[Row]:
    """Read a text in the form that gives the most rows with a column that only
    reinforcement learning logs."""
    forms = (as_json, as_json_lines, as_printed, as_verl_prints, as_table)
    read = ([row for row in form(text) if isinstance(row, dict)] for form in forms)
    found = [[flat(row) for row in rows] for rows in read]
    return max(found, key=lambda rows: (sum(map(signals, rows)), bool(rows)))


def signals(names: Iterable[str]) -> bool:
    """True if one of these columns is logged by reinforcement learning alone."""
    return any(is_known(ours(name), SIGNALS) for name in names)


def as_json(text: str) -> Iterable[Any]:
    """Read a JSON list of rows, a trainer's state, or an object of columns."""
    whole = parsed(text)
    if isinstance(whole, dict):
        lists = {n: x for n, x in whole.items() if isinstance(x, list)}
        if "log_history" not in whole and len(lists) > 1:
            return [dict(zip(lists, x)) for x in zip_longest(*lists.values())]
        whole = whole.get("log_history", [whole])
    return whole if isinstance(whole, list) else []


def as_json_lines(text: str) -> Iterator[Any]:
    return (parsed(line) for line in text.splitlines() if line.lstrip()[:1] == "{")


def as_printed(text: str) -> Iterator[Row]:
    """Read dictionaries without others inside, anywhere in other output.

    A number before them is their step. A "step 15" after "rollout 7" belongs to this
    rollout, which may have several.
    """
    rollout = None
    for word, label, found in FLAT.findall(text):
        row = parsed(found)
        if row is None:
            try:
                row = ast.literal_eval(BARE.sub(r": '\1'", found))
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue
        if isinstance(row, dict):
            rollout = label if word == "rollout" else rollout
            step = rollout if word == "step" and rollout else label
            yield {"step": step} | row if step else row


def as_verl_prints(text: str) -> Iterator[Row]:
    """Read lines such as "step:3 - actor/entropy:0.4 - …"."""
    for step, rest in CONSOLE.findall(text):
        parts = [part.rpartition(":") for part in rest.split(" - ")]
        row = {name.strip(): value for name, _, value in parts}
        if row.get("actor/ppo_kl", "").strip("-") == "0.000":  # rounded to 3 digits
            del row["actor/ppo_kl"]
        yield {"step": step} | row


def as_table(text: str) -> list[Row]:
    """Read a table. Its first line has the name of a known column, or is the text's;
    its separator is the most frequent of comma, semicolon, tab and bar in that line."""
    lines = text.strip("\n").splitlines() or [""]
    signs = [max(",;\t|", key=line.count) for line in lines]
    cells = (map(str.strip, line.split(sign)) for line, sign in zip(lines, signs))
    first = next((i for i, names in enumerate(cells) if signals(names)), 0)
    try:
        rows = [*csv.DictReader(lines[first:], delimiter=signs[first])]
    except csv.Error:
        return []
    return [{str(n).strip(): x for n, x in row.items() if n} for row in rows]


def parsed(text: str) -> Any:
    """Parse JSON; None for other texts, such as a line that a kill has cut off."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def flat(row: Row) -> Row:
    """Unpack dictionaries in a row; mark what an evaluation has measured; call its step
    "step"; add what others log in parts."""
    row = {
        str(m if n in ("data", "metrics") else f"{n}/{m}" if m else n): v
        for n, x in row.items()
        for m, v in (x if isinstance(x, dict) else {"": x}).items()
    }
    if str(row.pop("eval", "")).lower() == "true":
        row = {n if ours(n) == "step" else f"eval/{n}": x for n, x in row.items()}
    most, least = (number(row.get(f"critic/score/{x}")) for x in ("max", "min"))
    mixed = number(row.get("env/all/by_group/frac_mixed"))
    if most is not None and least is not None:
        row["critic/score/range"] = most - least
    if mixed is not None:
        row["env/all/by_group/frac_dead"] = 1 - mixed
    steps = [n for n in row if ours(n) == "step"]
    if steps and "step" not in row:
        step = row[min(steps, key=rank)]
        row["step"] = step.partition("/")[0] if isinstance(step, str) else step  # 5/200
    return row


def named(names: Iterable[str]) -> dict[str, str]:
    """Map our names to those of the file. If two mean the same column, ours has
    priority, then the one that comes first in `symptoms.toml`."""
    called: dict[str, str] = {}
    for name in sorted(names, key=rank):
        called.setdefault(ours(name), name)
    parts = [key for key in called if key.startswith("rewards: ")]
    if len(parts) == 1 and "reward" not in called:
        called["reward"] = called.pop(parts[0])
    return called


def ours(name: str) -> str:
    """Return the course's name for a column; the name itself if there is none."""
    return meaning(name)[0]


def rank(name: str) -> int:
    """Return the place of a name among those of its column; −1 for ours."""
    return meaning(name)[1]


@cache
def meaning(name: str) -> tuple[str, int]:
    """Return `ours` and `rank`. W&B puts run and mode before a name, TRL puts spaces
    into it in a notebook, and others "mean"."""
    plain = name.rpartition(" - ")[2].replace(" / ", "/").strip().lower()
    plain = plain.removeprefix("train/")
    known = plain if plain in KNOWN else MEAN.sub("", plain)
    if known in KNOWN:
        return OURS.get(known, known), RANK.get(known, -1)
    for ours, pattern in DATA["patterns"].items():
        if plain != ours and re.fullmatch(pattern, plain):
            return f"{ours}: {plain}", -1
    return plain, -1


def is_known(key: str, columns: Iterable[str] = READ_BY_RULES) -> bool:
    """True if a rule reads the column, or one of `columns` if they are given."""
    return key.partition(": ")[0] in columns


def merged(rows: list[Row]) -> list[Row]:
    """Join the rows of each step, and sort them, if every row has a step.

    An evaluation has a row of its own. If a cell occurs twice, the last one counts,
    because a resumed run logs some steps again; but in a row whose reward is NaN, which
    fills gaps, NaN replaces nothing.
    """
    steps: list[Any] = [number(row.get("step")) for row in rows]
    if any(step is None or not math.isfinite(step) for step in steps):
        return rows
    joined: dict[Any, Row] = {}
    for step, row in zip(steps, rows):
        old = joined.get(step, {})
        new = {n: x for n, x in row.items() if x not in (None, "")}
        gaps = {n for n, x in new.items() if str(x).lower() == "nan"}
        if any(ours(name) == "reward" for name in gaps):
            new = {n: x for n, x in new.items() if n not in gaps & old.keys()}
        joined[step] = old | new
    return [joined[step] for step in sorted(joined)]


def number(value: Any) -> float | None:
    """Convert a cell to a number; None if it is empty or not a number."""
    if isinstance(value, str) and (call := CALL.fullmatch(value.strip())):
        value = call[1]
    try:
        if isinstance(value, str) and value.endswith("%"):
            return float(value[:-1]) / 100
        return None if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
