"""What worlds with habits share: how problems are drawn, held out and demonstrated."""

import random
import zlib
from collections.abc import Callable
from typing import Annotated, ClassVar

from pydantic import AfterValidator

from refimpl.checks import Count, Seed, Share, guarded
from refimpl.seeds import salted


class TaskWarning(UserWarning):
    """A task or its scorer does something that a reader should know of."""


HABITS = ("careful", "guess", "ramble")


def habit(completion: str) -> str:
    """Which habit the first character shows; 'other' if none."""
    if completion[:1] in ("#", "?"):
        return {"#": "guess", "?": "ramble"}[completion[0]]
    return "careful" if completion[:1].isdigit() else "other"


def _whole(mix: tuple[float, ...]) -> tuple[float, ...]:
    if abs(sum(mix) - 1) > 1e-6:
        raise ValueError
    return mix


Mix = Annotated[tuple[Share, Share, Share], AfterValidator(_whole), "that add up to 1"]
"""Shares of careful, guess and ramble."""


class HabitWorld:
    """Problems with an exact answer, and three habits of answering them.

    A world says how a problem is drawn (`_problem`: a row with its `prompt`) and how a
    habit looks (`_demonstrated`). One problem in eight (by a hash of its prompt) is
    held out: it is in no warm start and no rollout, and only `held_out` returns it.
    """

    purpose: ClassVar[str] = ""
    """before the purpose of a seed, so that worlds do not share them"""
    habit = staticmethod(habit)
    habits: ClassVar[tuple[str, ...]] = HABITS
    reward: ClassVar[Callable[..., list[float]]]
    habit_mix: Mix
    """what warm start ends with"""

    def _problem(self, rng: random.Random) -> dict:
        raise NotImplementedError

    def _demonstrated(self, kind: str, prompt: str, rng: random.Random) -> str:
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
            row["completion"] = self._demonstrated(kind, row["prompt"], rng)
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
