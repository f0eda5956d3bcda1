"""Calls of reward functions and tasks that users have written, with checks."""

import functools
import inspect
import math
from collections.abc import Callable, Collection
from typing import Any

from jaxtyping import Float, Real
from torch import Tensor

from refimpl.validation import Count, UserError, guarded, named, one_line, shown


@guarded
def score(
    reward: Callable,
    prompts: Collection[str],
    completions: Collection[str],
    columns: dict,
    component: str | None = None,
) -> list[float]:
    """Call reward(prompts, completions, **columns), and check its result.

    The signature is TRL's: in addition to the task's columns, a function gets those of
    the arguments `OFFERED` that it takes. Completions are texts; `conversational` wraps
    a function that reads messages. A `component` of a summed reward may return None for
    an answer to which it does not apply, which becomes NaN.

    Raises `UserError`, with the reward function's own exception as its cause, unless
    the result is one finite number per completion.
    """
    name = f"the reward function {named(reward)}"
    if component is not None:
        name += f" (component {component!r})"
    columns = {c: x for c, x in columns.items() if c not in OFFERED or takes(reward, c)}
    try:
        paid = reward(prompts=[*prompts], completions=[*completions], **columns)
    except Exception as error:
        raise UserError(
            f"{name} raised {one_line(error)}. It is called with lists of texts (of "
            "messages, with rewards.conversational), as f(prompts=…, completions=…, "
            f"{', '.join(f'{c}=…' for c in columns)}); take **columns for the rest"
        ) from error
    none: Any = None if component is None else math.nan
    try:
        paid = [*paid]
        rewards = [float(none if value is None else value) for value in paid]
    except Exception:  # not a list, or not all numbers
        rewards = []
    if len(rewards) != len(completions):
        raise UserError(
            f"{name} must return {len(completions)} numbers, one per completion; it "
            f"returned {shown(paid)}"
        )
    for value, returned, completion in zip(rewards, paid, completions):
        if returned is not None and not math.isfinite(value):
            raise UserError(
                f"{name} returned {value} for {completion[:80]!r}; every reward must "
                "be a finite number"
            )
    return rewards


def conversational(reward: Callable) -> Callable:
    """Wrap a reward that reads messages, as TRL's conversational data holds them.

    It gets [{"role": "assistant", "content": text}] in place of each text, and a
    prompt's messages in place of the prompt.
    """

    @functools.wraps(reward, updated=())
    def of_messages(prompts, completions, **columns):
        questions = [getattr(p, "messages", [said("user", p)]) for p in prompts]
        answers = [[said("assistant", text)] for text in completions]
        prompts = [[*map(dict, question)] for question in questions]
        return reward(prompts=prompts, completions=answers, **columns)

    return of_messages


def said(role: str, text: str) -> dict[str, str]:
    """Make a message, as a chat template and TRL's conversational data hold it."""
    return {"role": role, "content": text}


class Prompt(str):
    """A prompt in a chat template that also keeps its `messages`."""

    messages: list[dict[str, str]]


OFFERED = ("completion_ids", "log_metric")
"""Arguments that a reward may take in addition to a task's columns, as in TRL.

completion_ids: the tokens of each answer, including the one that ended it.
log_metric(name, number): the mean of the numbers becomes a column of the history.
"""


def ignored(name: str, value: Any) -> None:
    """Replace log_metric where nothing records it."""


def takes(reward: Callable, name: str) -> bool:
    """True if a function has an argument `name`, or accepts any keyword."""
    parameters = inspect.signature(reward).parameters
    kinds = [p.kind for p in parameters.values()]
    return name in parameters or inspect.Parameter.VAR_KEYWORD in kinds


def check_share(rewards: list[float]) -> None:
    """Raise `UserError` unless all rewards of a task lie between 0 and 1."""
    if odd := [x for x in rewards if not 0 <= x <= 1]:
        raise UserError(
            "an accuracy is the mean of task.reward, which must lie between 0 and 1, "
            f"got {odd[0]:g}; a reward on another scale goes into train(reward=…)"
        )


def scored(
    reward: Callable, prompts, completions, columns: dict
) -> tuple[list[float], dict[str, list[float]]]:
    """Call `reward`, and each of its `components` if it has them.

    `components` is a dictionary name → reward function. If `reward` has a function
    `total` (as `refimpl.pretrained.rewards.Sum` has), the reward is computed from the
    components; otherwise they are only recorded.
    """
    parts = {
        name: score(part, prompts, completions, columns, component=name)
        for name, part in getattr(reward, "components", {}).items()
    }
    if hasattr(reward, "total"):
        return reward.total(parts), parts
    return score(reward, prompts, completions, columns), parts


@guarded
def overlong_punishment(
    length: Real[Tensor, " B"], max_length: Count, buffer: float
) -> Float[Tensor, " B"]:
    """DAPO's soft punishment (2503.14476, Eq. 13), added to the correctness reward.

        0                                       |y| ≤ L_max − L_cache
        ((L_max − L_cache) − |y|) / L_cache     on the ramp
        −1                                      |y| > L_max

    `length` |y| and `buffer` L_cache are in tokens; `max_length` is L_max.

    Raises `UserError` unless 0 < buffer ≤ max_length.
    """
    if not 0 < buffer <= max_length:
        raise UserError(
            f"buffer must lie in (0, max_length = {max_length}], got {buffer}: it is "
            "the length of the ramp, in tokens, before the limit"
        )
    return ((max_length - buffer - length) / buffer).clamp(-1, 0)


def columns(rows: list[dict]) -> dict[str, list]:
    """Convert a task's rows to the columns that a reward takes (TRL's signature)."""
    return {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}


PARTS = ("sample", "held_out", "reward", "habit", "habits")


def rows_of(task: Any, method: str, n: int, seed: int = 0) -> list[dict]:
    """Call task.method(n, seed). Raises `UserError` on an invalid task or rows."""
    lacks = [part for part in PARTS if not hasattr(task, part)]
    if lacks or isinstance(task, type):
        raise UserError(
            f"task must be an object with {', '.join(PARTS)} (see refimpl.tasks), got "
            + (f"{shown(task)}, which lacks {', '.join(lacks)}" if lacks else "a class")
        )
    call = f"task.{method}({n}, {seed})"
    try:
        rows = getattr(task, method)(n, seed)
    except UserError:
        raise  # its message is written for users
    except Exception as error:
        raise UserError(f"{call} raised {one_line(error)}") from error
    listed = rows if isinstance(rows, list) else []
    for row in listed or [rows]:
        alike = isinstance(row, dict) and listed and row.keys() == listed[0].keys()
        if not (alike and isinstance(row.get("prompt"), str)):
            raise UserError(
                f"task.{method} must return a list of dictionaries with a 'prompt' "
                f"string and the same keys throughout; it returned {shown(row)}"
            )
    if len(rows) != n:
        raise UserError(f"{call} returned {len(rows)} rows, not {n}")
    return rows
