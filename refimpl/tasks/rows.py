"""Problems of your own as a task: rows of a dataset, and a reward.

rows = read("problems.jsonl")        {"prompt": "What is 4 + 6?", "answer": "10"}
task = Rows(rows, reward)
"""

import json
import random
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, ClassVar

from refimpl.rewards import Prompt
from refimpl.seeds import salted
from refimpl.validation import Count, Seed, Share, UserError, checked, guarded, shown


def none(completion: str) -> str:
    """Name no habit."""
    return ""


@checked
class Rows:
    """A list of dictionaries as a task, some of them held out.

    A row has a `prompt`, a text or a list of messages such as {"role": "user",
    "content": "What is 4 + 6?"}; all other keys are columns that `reward` gets.
    `reward` has TRL's signature, and its numbers lie between 0 and 1. A share
    `test_share` of the rows, drawn by `seed` (at least one), is only returned by
    `held_out`. Either side repeats its rows if it is asked for more.

    Raises `UserError` if there are fewer than two rows, if one has no prompt, or if
    they do not all have the same keys.
    """

    rows: Collection[dict]
    reward: Callable
    test_share: Share = 0.2
    seed: Seed = 0

    habit = staticmethod(none)
    habits: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if len(self.rows) < 2:
            raise UserError("rows must hold at least two problems: one is held out")
        check((f"row {i}", row) for i, row in enumerate(self.rows))

    @guarded
    def sample(self, n: Count, seed: Seed) -> list[dict]:
        """Draw n training problems; none twice, unless there are fewer."""
        return self._draw(n, random.Random(f"rows {salted(seed)}"), False)

    @guarded
    def held_out(self, n: Count, seed: Seed = 0) -> list[dict]:
        """Draw n problems that are never trained on."""
        return self._draw(n, random.Random(f"held out {salted(seed)}"), True)

    def _draw(self, n: int, rng: random.Random, held_out: bool) -> list[dict]:
        order = random.Random(self.seed).sample(range(len(self.rows)), len(self.rows))
        cut = min(max(1, round(self.test_share * len(order))), len(order) - 1)
        side = order[:cut] if held_out else order[cut:]
        drawn: list[int] = []
        while len(drawn) < n:
            drawn += rng.sample(side, min(len(side), n - len(drawn)))
        rows = [*self.rows]
        return [rows[i] | {"prompt": prompt_of(rows[i]["prompt"])} for i in drawn]


def prompt_of(given: str | list[dict]) -> str:
    """Return a prompt as a text, which also keeps its messages if it has some."""
    if isinstance(given, str):
        return given
    prompt = Prompt("\n\n".join(message["content"] for message in given))
    prompt.messages = given
    return prompt


def check(rows: Iterable[tuple[str, Any]]) -> None:
    """Raise `UserError`, with a row's place, on one that is no problem."""
    keys = None
    for where, row in rows:
        prompt = row.get("prompt") if isinstance(row, dict) else None
        talk = isinstance(prompt, list) and all(
            isinstance(m, dict) and isinstance(m.get("content"), str) for m in prompt
        )
        if not prompt or not (isinstance(prompt, str) or talk):
            raise UserError(
                f"{where} must be a dictionary with a 'prompt', a text or a list of "
                f"messages; it is {shown(row)}"
            )
        keys = keys or row.keys()
        if row.keys() != keys:
            raise UserError(
                f"{where} has the keys {', '.join(row)}, but the first row has "
                f"{', '.join(keys)}: all rows need the same"
            )


def read(path: str | Path) -> list[dict]:
    """Read problems from a file of JSON lines.

    Raises `UserError`, with the number of the line, if one cannot be used.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)!r} cannot be read: {error}") from error
    placed = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"line {number} of {path}"
            try:
                placed.append((where, json.loads(line)))
            except ValueError as error:
                raise UserError(f"{where} is not JSON: {error}") from error
    check(placed)
    return [row for _, row in placed]
