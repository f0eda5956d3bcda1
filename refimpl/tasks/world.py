"""Worlds with habits: problems are drawn, held out, demonstrated and judged here."""

import random
import zlib
from collections.abc import Collection
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator

from refimpl.seeds import salted
from refimpl.validation import Count, Seed, Share, guarded

HABITS = ("careful", "guess", "ramble")


class TaskWarning(UserWarning):
    """A task or its scorer does something that a reader should know of."""


def habit(completion: str) -> str:
    """Which habit the first character shows; 'other' if none."""
    if completion[:1].isdigit():
        return "careful"
    return {"#": "guess", "?": "ramble"}.get(completion[:1], "other")


@guarded
def verify(response: Any, answer: int | str) -> bool:
    """True if `response` ends in one `#`, then exactly `answer`.

    One `#` only, so that listing every answer pays nothing; no leading zeros; nothing
    after it. The response is compared, never evaluated, and what is no text is wrong.
    """
    if not isinstance(response, str):
        return False
    _, mark, given = response.partition("#")
    return mark + given == f"#{answer}"


@guarded
def correctness(
    prompts: Any, completions: Collection[Any], *, answer: Collection[Any], **columns
) -> list[float]:
    """Reward 1.0 for a verified answer, else 0.0. TRL's reward signature."""
    return [float(verify(c, a)) for c, a in zip(completions, answer, strict=True)]


def _whole(mix: tuple[float, ...]) -> tuple[float, ...]:
    if abs(sum(mix) - 1) > 1e-6:
        raise ValueError
    return mix


Mix = Annotated[tuple[Share, Share, Share], AfterValidator(_whole), "that add up to 1"]
"""Shares of careful, guess and ramble."""


class HabitWorld:
    """Problems with an exact answer, and three habits of answering them.

    A world is a dataclass that inherits from this. It says how a problem is drawn
    (`_problem`: a row with `prompt` and `answer`), and has a method
    `habit(prompt, rng)` of the name of each habit, which shows it. One problem in eight
    (by a hash of its prompt) is held out: it is in no warm start and no rollout, and
    only `held_out` returns it.
    """

    purpose: ClassVar[str] = ""
    """before the purpose of a seed, so that worlds do not share them"""
    habit = staticmethod(habit)
    habits: ClassVar[tuple[str, ...]] = HABITS
    reward = staticmethod(correctness)
    habit_mix: Mix
    """what warm start ends with"""

    def _problem(self, rng: random.Random) -> dict:
        raise NotImplementedError

    @guarded
    def sample(self, n: Count, seed: Seed) -> list[dict]:
        """n training problems as dataset rows."""
        return self._draw(n, self._random("train", seed), held_out=False)

    @guarded
    def held_out(self, n: Count, seed: Seed = 0) -> list[dict]:
        """n problems that are never trained on."""
        return self._draw(n, self._random("test", seed), held_out=True)

    @guarded
    def demonstrations(
        self, n: Count, seed: Seed, mix: Mix | None = None
    ) -> list[dict]:
        """n training problems, each with a `completion` in a habit drawn from `mix`."""
        rng = self._random("demonstrations", seed)
        rows = self._draw(n, rng, held_out=False)
        chosen = rng.choices(HABITS, weights=mix or self.habit_mix, k=n)
        for row, kind in zip(rows, chosen, strict=True):
            row["completion"] = getattr(self, kind)(row["prompt"], rng)
        return rows

    def _draw(self, n: int, rng: random.Random, held_out: bool) -> list[dict]:
        rows: list[dict] = []
        while len(rows) < n:
            row = self._problem(rng)
            if (zlib.crc32(row["prompt"].encode()) % 8 == 0) == held_out:
                rows.append(row)
        return rows

    def _random(self, purpose: str, seed: int) -> random.Random:
        return random.Random(f"{self.purpose}{purpose} {salted(seed)}")
