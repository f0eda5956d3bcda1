"""Tasks that nobody here wrote: any dataset of reasoning-gym, by its name.

    ReasoningGym("chain_sum", min_terms=2, max_terms=2, max_digits=1)
    prompt   State the final answer to the following arithmetic problem: 4 + 6 =
    answer   10

Problems are made on demand, without end, and judged by the dataset's own scorer.
"""

import contextlib
import decimal
import functools
import random
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import TypeAdapter, ValidationError

from refimpl.pretrained import answers, judge, notation
from refimpl.pretrained.answers import Extract, Reward
from refimpl.pretrained.extras import needed
from refimpl.seeds import salted
from refimpl.validation import (
    Count,
    Positive,
    Seed,
    UserError,
    checker,
    from_text,
    guarded,
    nearest,
    one_line,
    refuse_unknown,
    sentence,
    shown,
)

EVALUATES = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
"""Datasets whose scorers run the answer as Python: `eval`, sympy's `parse_expr`."""
PAYS_ALL = frozenset({"coin_flip", "complex_arithmetic", "game_of_life_halting"})
"""Datasets whose scorers pay one text for nearly all problems: `0`, `nan`, anything."""
CONSTANTS = ("nan", "0", "")
FORWARDS = frozenset({"composite"})
"""Datasets made of others, whose scorers it would call."""

COMMON: dict[str, Any] = {
    "extract": Extract,
    "partial_credit": bool,
    "time_limit": Positive,
}
CHUNK = 256


@dataclass(frozen=True, init=False, repr=False)
class ReasoningGym:
    """The dataset `name` of reasoning-gym as a task.

    - `difficulty`: settings of the dataset, given by name; `settings(name)` lists them.
    - `extract`: what of a completion is the answer, see `answers.extracted`.
    - `partial_credit`: the reward is the scorer's own number in [0, 1], which often
      pays a little for an answer that is nearly right; False: 1.0 for full marks
      (0.99 or more), else 0.0.
    - `time_limit`: seconds that the scorer may take for one answer.
    - `scorer`: a reward function with TRL's signature instead of the dataset's scorer;
      it gets the columns `answer` and `entry` (all that reasoning-gym knows).

    One problem in eight (by a hash of its question) is held out: only `held_out`
    returns it. Where a dataset has few questions, they repeat within a side.

    Raises `UserError` if there is no such dataset, if it refuses the settings, if its
    scorer evaluates answers as code, or pays one text for all problems, and no `scorer`
    is given, or if the dataset's own answers are not paid; `UserError` with the nearest
    name if it has no such setting.
    """

    name: str
    difficulty: dict[str, Any]
    extract: Extract
    partial_credit: bool
    time_limit: float
    scorer: Reward | None

    habit = staticmethod(answers.habit)
    habits = answers.HABITS

    def __init__(
        self,
        name: str,
        *,
        extract: Extract = "whole",
        partial_credit: bool = True,
        time_limit: Positive = 2.0,
        scorer: Reward | None = None,
        **difficulty: Any,
    ) -> None:
        given: dict[str, Any] = {
            "extract": extract,
            "partial_credit": partial_credit,
            "time_limit": time_limit,
        }
        for field, value in given.items():
            given[field] = checker(field, COMMON[field])(value)
        _check_name(name, scorer)
        kinds = {k: v for k, v in settings(name).items() if k not in COMMON}
        refuse_unknown(f"reasoning-gym's {name}", difficulty, kinds)
        for field, value in difficulty.items():
            if _plain(kinds[field]):
                difficulty[field] = checker(field, kinds[field])(value)
        given |= {"name": name, "scorer": scorer, "difficulty": difficulty}
        for field, value in given.items():
            object.__setattr__(self, field, value)
        self._config(0)
        if scorer is None:
            _check_own_answers(self)

    def __repr__(self) -> str:
        """Only what is not a default; the same text for the same task."""
        given = {**self.difficulty}
        for field in ("extract", "partial_credit", "time_limit", "scorer"):
            value = getattr(self, field)
            if value != DEFAULTS[field]:
                given[field] = value
        shown = [f"{k}={_named(given[k])}" for k in sorted(given)]
        return f"ReasoningGym({', '.join([repr(self.name), *shown])})"

    def __hash__(self) -> int:
        return hash(repr(self))

    @guarded
    def sample(self, n: Count, seed: Seed) -> list[dict]:
        """n training problems as rows: `prompt`, `answer`, `entry`.

        Raises `UserError` if the dataset has too few questions or makes none.
        """
        return self._draw(n, f"train {salted(seed)}", held_out=False)

    @guarded
    def held_out(self, n: Count, seed: Seed = 0) -> list[dict]:
        """n problems that are never trained on."""
        kept = _held_out(self, n, f"test {salted(seed)}")
        return [dict(row) for row in kept]

    @guarded
    def reward(
        self,
        prompts: Any,
        completions: Collection[Any],
        *,
        entry: Collection[dict],
        **columns: Any,
    ) -> list[float]:
        """The scorer's verdict on each completion, in [0, 1]. TRL's signature.

        Answers are scored in a process of their own; see `judge.scores` for what
        happens to one on which the scorer raises or hangs.
        """
        if self.scorer is not None:
            return self.scorer(
                prompts=prompts, completions=completions, entry=entry, **columns
            )
        answer = [
            answers.extracted(c, e["answer"], self.extract)
            if isinstance(c, str)
            else None
            for c, e in zip(completions, entry, strict=True)
        ]
        scores = self._scores(answer, entry)
        if self.partial_credit:
            return scores
        return [float(score >= 0.99) for score in scores]

    def _scores(self, answer: Collection[Any], entry: Collection[dict]) -> list[float]:
        scorer = ("reasoning_gym", self.name, self.difficulty)
        return judge.scores(scorer, answer, entry, self.time_limit)

    def _draw(self, n: int, purpose: str, held_out: bool) -> list[dict]:
        start = random.Random(f"reasoning_gym {purpose}").randrange(2**31)
        rows: list[dict] = []
        questions: set[str] = set()
        tries = 64 * n + CHUNK
        for entry in self._entries(start, tries):
            question = entry["question"]
            questions.add(question)
            if (zlib.crc32(question.encode()) % 8 == 0) == held_out:
                rows.append(
                    {"prompt": question, "answer": entry["answer"], "entry": entry}
                )
            if len(rows) == n:
                return rows
        side = "held out (one in eight is)" if held_out else "left to train on"
        raise UserError(
            f"{self!r} has too few questions: of {tries} problems with "
            f"{len(questions)} distinct questions only {len(rows)} were {side}; widen "
            "its settings"
        )

    def _entries(self, start: int, n: int) -> Iterator[dict]:
        """n problems, with the global generators left as they were."""
        for first in range(start, start + n, CHUNK):
            dataset = None
            for index in range(min(CHUNK, start + n - first)):
                with _generators_kept():
                    try:
                        if dataset is None:
                            dataset = _dataset(self.name)(self._config(first))
                        entry = dataset[index]
                    except Exception as error:
                        raise UserError(
                            f"{self!r} could not make a problem: {one_line(error)}"
                        ) from error
                yield entry

    def _config(self, seed: int) -> Any:
        """The dataset's own settings, as far as it accepts them."""
        make = _datasets()[self.name][1]
        try:
            config = make(**self.difficulty, seed=seed % 2**31, size=CHUNK)
            getattr(config, "validate", lambda: None)()
        except Exception as error:  # mostly AssertionError
            raise UserError(
                f"reasoning-gym's {self.name} refuses these settings: {one_line(error)}"
            ) from None
        return config


DEFAULTS = {k: p for k, p in (ReasoningGym.__init__.__kwdefaults__ or {}).items()}


@functools.lru_cache(maxsize=64)
def _check_own_answers(task: ReasoningGym) -> None:
    """Raise `UserError` if the answers that come with four problems are not paid, or if
    one text is paid for all of these, or a number with the other sign.

    Some datasets have none: many answers are right.
    """
    rows = [e for e in task._entries(0, 4) if e["answer"] is not None]
    own = [str(e["answer"]) for e in rows]
    tag = "<answer>{}</answer>" if task.extract == "tag" else "{}"
    told = [tag.format(text) for text in own]
    read = [answers.extracted(t, o, task.extract) for t, o in zip(told, own)]
    for text, part, paid in zip(own, read, task._scores(read, rows)):
        if paid < 0.99:
            raise UserError(
                f"{task!r} pays {paid:g} for its own answer {shown(text)}, of which "
                f"{shown(part)} is judged: take another extract, or give a scorer"
            )
    for text in CONSTANTS:
        others = len({*own} - {text})
        if others > 1 and min(task._scores([text] * len(rows), rows)) >= 0.99:
            raise UserError(
                f"{task!r} pays {text!r} for four problems whose answers differ: give "
                "a scorer"
            )
    numbers = [e for e, o in zip(rows, own) if notation.is_number(o) and o.strip("0.")]
    turned = [f"-{e['answer']}".removeprefix("--") for e in numbers]
    for text, paid in zip(turned, task._scores(turned, numbers)):
        if paid >= 0.99:
            raise UserError(
                f"{task!r} pays {text!r} for {text.removeprefix('-')!r}, or the other "
                "way round: give a scorer that reads signs, as answers.math_correct"
            )


@functools.lru_cache(maxsize=8)
def _held_out(task: ReasoningGym, n: int, purpose: str) -> tuple[dict, ...]:
    """Kept, for every evaluation asks for the same ones, and some are slow to make."""
    return tuple(task._draw(n, purpose, held_out=True))


def settings(name: str) -> dict[str, Any]:
    """The settings of the dataset `name`, with their types."""
    kinds = get_type_hints(_datasets()[name][1])
    names = [f.name for f in fields(_datasets()[name][1])]
    return {n: kinds[n] for n in names if n not in ("seed", "size")} | COMMON


def from_texts(name: str, pairs: dict[str, str]) -> ReasoningGym:
    """The task with settings from a command line; a list is written as `a,b,c`.

    Raises as `ReasoningGym` does, and `UserError` on a text of another type.
    """
    _check_name(name, scorer=answers.contains_answer)
    kinds = settings(name)
    refuse_unknown(f"reasoning-gym's {name}", pairs, kinds)
    return ReasoningGym(
        name, **{k: _read(k, kinds[k], text) for k, text in pairs.items()}
    )


def _read(name: str, kind: Any, text: str) -> Any:
    if _plain(kind) or name in COMMON:
        return from_text(name, kind, text)
    several = any(_many(one) for one in (kind, *get_args(kind)))
    try:
        return TypeAdapter(kind).validate_python(text.split(",") if several else text)
    except (ValidationError, TypeError, ValueError):
        raise UserError(sentence(name, kind, text)) from None


def _many(kind: Any) -> bool:
    return (get_origin(kind) or kind) in (list, tuple, Collection) or (
        getattr(get_origin(kind), "__name__", "") == "Sequence"
    )


def _plain(kind: Any) -> bool:
    """True if `kind` is one that `validation.checker` has words for."""
    if get_origin(kind) is Union:
        return all(_plain(part) for part in get_args(kind))
    known = kind in (int, float, bool, str, type(None))
    return known or get_origin(kind) is Literal


def _check_name(name: Any, scorer: Any) -> None:
    known = [n for n in _datasets() if n not in FORWARDS]
    if name not in known:
        close = nearest(str(name), known) or f"; it has: {', '.join(sorted(known))}"
        raise UserError(f"reasoning-gym has no dataset {name!r}{close}")
    if scorer is not None and not callable(scorer):
        raise UserError(f"scorer must be a function, got {scorer!r}")
    why = ""
    if name in EVALUATES:
        why = "runs the answer as Python, and what a model writes must never be run"
    elif name in PAYS_ALL:
        why = "pays one text for nearly all problems, and a policy would find it"
    if why and scorer is None:
        raise UserError(
            f"the scorer of reasoning-gym's {name} {why}: give a scorer of your own "
            "(scorer=…, a reward function), or take another dataset"
        )


def _datasets() -> dict[str, tuple]:
    needed("reasoning_gym")  # whose import fills the table
    from reasoning_gym.factory import DATASETS

    return DATASETS


def _dataset(name: str) -> Any:
    return _datasets()[name][0]


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    """A dataset may seed the global generators (pool_matrix does).

    Or set the precision of every `Decimal` to come (decimal_arithmetic does).
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with decimal.localcontext():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _named(value: Any) -> str:
    named = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{named}" if named else repr(value)
