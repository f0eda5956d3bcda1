"""Calling a reward function that we did not write."""

import math
from collections.abc import Callable, Collection

from jaxtyping import Float, Real
from torch import Tensor

from refimpl.arguments import guarded
from refimpl.settings import Count, shown


@guarded
def score(
    reward: Callable,
    prompts: Collection[str],
    completions: Collection[str],
    columns: dict,
) -> list[float]:
    """reward(prompts, completions, **columns), checked: one finite number each.

    TRL's signature. Raises `ValueError` that says which completion was at fault, with
    the reward function's own exception as its cause.
    """
    name = getattr(reward, "__name__", type(reward).__name__)
    try:
        rewards = reward(
            prompts=list(prompts), completions=list(completions), **columns
        )
    except Exception as error:
        raise ValueError(
            f"the reward function {name} raised {type(error).__name__}: "
            f"{' '.join(str(error).split())}. It is called as f(prompts=…, "
            f"completions=…, "
            f"{', '.join(f'{c}=…' for c in columns)}); take **columns for the rest"
        ) from error
    try:
        got: int | str = len(rewards)
    except TypeError:  # None, one number, a generator, a tensor without dimensions
        got = repr(rewards)
    if got != len(completions):
        raise ValueError(
            f"the reward function {name} must return {len(completions)} numbers, one "
            f"per completion; it returned {got}"
        )
    checked = []
    for value, completion in zip(rewards, completions, strict=True):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(
                f"the reward function {name} returned {value!r} for "
                f"{completion[:80]!r}; every reward must be a finite number"
            )
        checked.append(number)
    return checked


@guarded
def overlong_punishment(
    length: Real[Tensor, " B"], max_length: Count, buffer: float
) -> Float[Tensor, " B"]:
    """DAPO's soft punishment (2503.14476, Eq. 13), added to the correctness reward.

        0                                       |y| ≤ L_max − L_cache
        ((L_max − L_cache) − |y|) / L_cache     on the ramp
        −1                                      |y| > L_max

    `length` |y| and `buffer` L_cache in tokens; the ramp ends at `max_length`, L_max.

    Raises `ValueError` unless 0 < buffer ≤ max_length.
    """
    if not 0 < buffer <= max_length:
        raise ValueError(
            f"buffer must lie in (0, max_length = {max_length}], got {buffer}: it is "
            "the length of the ramp, in tokens, before the limit"
        )
    return ((max_length - buffer - length) / buffer).clamp(-1, 0)


def columns(rows: list[dict]) -> dict[str, list]:
    """A task's rows as the columns that a reward function takes (TRL's signature)."""
    return {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}


def check_rows(rows, method: str) -> list[dict]:
    """`rows` if they are what a task must return, else `ValueError` that says why."""
    said = f"task.{method} must return a list of dictionaries with a 'prompt' string"
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{said}; it returned {shown(rows)}")
    for row in rows:
        if not (isinstance(row, dict) and isinstance(row.get("prompt"), str)):
            raise ValueError(f"{said}; one of them is {shown(row)}")
        if row.keys() != rows[0].keys():
            raise ValueError(
                f"{said} and the same keys throughout; one has "
                f"{sorted(rows[0], key=str)}, another {sorted(row, key=str)}"
            )
    return rows
