"""Any dataset of reasoning-gym as a task, by its name.

    ReasoningGym("chain_sum", min_terms=2, max_terms=2, max_digits=1)
    prompt   State the final answer to the following arithmetic problem: 4 + 6 =
    answer   10

Problems are generated on demand, in any number, and judged by the dataset's own scorer.
"""

import contextlib
import decimal
import functools
import random
import zlib
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from refimpl.checkpoint import identity
from refimpl.pretrained import answers, judge
from refimpl.pretrained.answers import Extract, Reward
from refimpl.pretrained.extras import needed
from refimpl.seeds import salted
from refimpl.validation import Count, Seed, UserError, guarded, nearest, one_line

EVALUATES = frozenset(
    "binary_matrix countdown intermediate_integration n_queens puzzle24 "
    "polynomial_multiplication simple_integration spiral_matrix "
    "string_insertion".split()
)
"""Datasets whose scorers run the answer as Python: `eval`, sympy's `parse_expr`."""
WHY = dict.fromkeys(
    EVALUATES, "runs the answer as Python, and what a model writes must never be run"
) | dict.fromkeys(
    ("coin_flip", "complex_arithmetic", "game_of_life_halting"),
    "rewards one text for nearly all problems, and a policy would find it",
)
WHY["gsm_symbolic"] = "reads digits alone, so that it rewards -7 for 7"
WHY["composite"] = "calls those of other datasets"
"""The reason why the scorer of a dataset is refused."""
CHUNK = 256
"""Problems are made in datasets of this size, each with a seed of its own."""


class ReasoningGym:
    """The dataset `name` of reasoning-gym as a task.

    - `difficulty`: settings of the dataset by name, as its class of settings has them.
    - `extract`: the part of a completion that is its answer, see `answers.extracted`.
    - `partial_credit`: the reward is the scorer's own number in [0, 1], which is often
      a little above 0 for an answer that is nearly right; False: 1.0 for full marks
      (0.99 or more), else 0.0.
    - `scorer`: a reward function with TRL's signature instead of the dataset's scorer;
      it gets the columns `answer` and `entry` (reasoning-gym's complete record).

    One problem in eight (by a hash of its question) is held out: only `held_out`
    returns it. If a dataset has few questions, they repeat, but never across the two
    sides.

    Raises `UserError` on an unknown name, if the dataset refuses the settings, or if
    its scorer accepts wrong answers or evaluates answers as code.
    """

    habit = staticmethod(answers.habit)
    habits = answers.HABITS

    @guarded
    def __init__(
        self,
        name: str,
        *,
        extract: Extract = "whole",
        partial_credit: bool = True,
        scorer: Reward | None = None,
        **difficulty: Any,
    ) -> None:
        if name in WHY and scorer is None:
            raise UserError(
                f"the scorer of reasoning-gym's {name} {WHY[name]}: give a scorer of "
                "your own (scorer=…, a reward function), or use another dataset"
            )
        self.name, self.difficulty, self.extract = name, difficulty, extract
        self.partial_credit, self.scorer = partial_credit, scorer
        self._made(0)

    def __repr__(self) -> str:
        """Show every setting that was given; the same task gives the same text."""
        own = {"extract": self.extract, "partial_credit": self.partial_credit}
        given = self.difficulty | own
        if self.scorer is not None:
            given["scorer"] = identity(self.scorer)
        settings = [f"{name}={x!r}" for name, x in sorted(given.items())]
        return f"ReasoningGym({', '.join([repr(self.name), *settings])})"

    @guarded
    def sample(self, n: Count, seed: Seed) -> list[dict]:
        """Draw n training problems as rows: `prompt`, `answer`, `entry`."""
        return self._draw(n, f"train {salted(seed)}", held_out=False)

    @guarded
    def held_out(self, n: Count, seed: Seed = 0) -> list[dict]:
        """Draw n problems that are never trained on."""
        rows = _held_out(self, n, f"test {salted(seed)}")
        return [dict(row) for row in rows]  # copies, because a caller may change them

    @guarded
    def reward(
        self,
        prompts: Any,
        completions: Collection[str],
        *,
        entry: Collection[dict],
        **columns: Any,
    ) -> list[float]:
        """Score each completion in [0, 1]; the scorer runs in a separate process."""
        if self.scorer is not None:
            given = {"prompts": prompts, "completions": completions, "entry": entry}
            return self.scorer(**given, **columns)
        pairs = zip(completions, entry, strict=True)
        answer = [answers.extracted(c, e["answer"], self.extract) for c, e in pairs]
        scorer = ("reasoning_gym", self.name, self.difficulty)
        scores = judge.scores(scorer, answer, entry)
        return scores if self.partial_credit else [float(s >= 0.99) for s in scores]

    def _draw(self, n: int, purpose: str, held_out: bool) -> list[dict]:
        start = random.Random(f"reasoning_gym {purpose}").randrange(2**31)
        rows: list[dict] = []
        tries = 64 * n + CHUNK
        for entry in self._entries(start, tries):
            row = {"prompt": entry["question"], "answer": entry["answer"]}
            if (zlib.crc32(row["prompt"].encode()) % 8 == 0) == held_out:
                rows.append(row | {"entry": entry})
            if len(rows) == n:
                return rows
        raise UserError(
            f"{self!r} has too few questions: of {tries} problems only {len(rows)} can "
            f"be used for {purpose.split()[0]}ing; widen its settings"
        )

    def _entries(self, start: int, n: int) -> Iterator[dict]:
        """Generate n problems."""
        for index in range(n):
            with _generators_kept():
                if index % CHUNK == 0:
                    dataset, config = self._made(start + index)
                    problems = dataset(config)
                entry = problems[index % CHUNK]
            yield entry

    def _made(self, seed: int) -> tuple[Any, Any]:
        """Return the dataset's class, and its configuration with these settings. Raises
        `UserError` on an unknown name, and if the settings are refused."""
        needed("reasoning_gym")  # whose import fills the table
        from reasoning_gym.factory import DATASETS

        if (name := self.name) not in DATASETS:
            near = nearest(name, DATASETS)
            raise UserError(f"reasoning-gym has no dataset {name!r}{near}")
        dataset, make = DATASETS[name]
        try:
            config = make(**self.difficulty, seed=seed % 2**31, size=CHUNK)
            if hasattr(config, "validate"):
                config.validate()
        except Exception as error:  # mostly AssertionError
            raise UserError(
                f"reasoning-gym's {name} refuses these settings: {one_line(error)}"
            ) from None
        return dataset, config


@functools.lru_cache(maxsize=8)
def _held_out(task: ReasoningGym, n: int, purpose: str) -> tuple[dict, ...]:
    """Draw held-out problems once, because some datasets are slow to make."""
    return tuple(task._draw(n, purpose, held_out=True))


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    """Restore the global generators and `Decimal` context; some datasets set them."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with decimal.localcontext():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
