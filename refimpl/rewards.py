"""Calling a reward function that we did not write."""

import math
from collections.abc import Callable, Collection
from dataclasses import is_dataclass

from jaxtyping import Float, Real
from torch import Tensor

from refimpl.checks import Count, UserError, guarded, one_line, shown


@guarded
def score(
    reward: Callable,
    prompts: Collection[str],
    completions: Collection[str],
    columns: dict,
    component: str | None = None,
) -> list[float]:
    """reward(prompts, completions, **columns), checked: one finite number each.

    TRL's signature. Raises `UserError` that says which completion was at fault, with
    the reward function's own exception as its cause; `component` is the name of the
    part of a sum that it is.
    """
    name = getattr(reward, "__name__", type(reward).__name__)
    if component is not None:
        name = f"{name} (component {component!r})"
    try:
        paid = reward(prompts=list(prompts), completions=list(completions), **columns)
    except Exception as error:
        raise UserError(
            f"the reward function {name} raised {one_line(error)}. It is called as "
            "f(prompts=…, completions=…, "
            f"{', '.join(f'{c}=…' for c in columns)}); take **columns for the rest"
        ) from error
    try:
        rewards = [float(value) for value in paid]
    except (TypeError, ValueError, OverflowError, RuntimeError):
        rewards = []  # None, one number, or something among them that is none
    if len(rewards) != len(completions):
        raise UserError(
            f"the reward function {name} must return {len(completions)} numbers, one "
            f"per completion; it returned {shown(paid)}"
        )
    for number, completion in zip(rewards, completions):
        if not math.isfinite(number):
            raise UserError(
                f"the reward function {name} returned {number} for "
                f"{completion[:80]!r}; every reward must be a finite number"
            )
    return rewards


def scored(
    reward: Callable, prompts, completions, columns: dict
) -> tuple[list[float], dict[str, list[float]]]:
    """What `reward` pays, and what each of its `components` does, if it has them.

    `components` is a dictionary name → reward function. With a function `total` (as
    `refimpl.real.rewards.Sum`) they decide the reward, else they are only recorded.
    """
    parts = {
        name: score(part, prompts, completions, columns, component=name)
        for name, part in getattr(reward, "components", {}).items()
    }
    if hasattr(reward, "total"):
        return reward.total(parts), parts
    return score(reward, prompts, completions, columns), parts


def identity(part) -> str:
    """What tells one task or reward from another: its settings, or else its name."""
    if is_dataclass(part):
        return repr(part)
    named = part if hasattr(part, "__qualname__") else type(part)
    return f"{named.__module__}.{named.__qualname__}"


@guarded
def overlong_punishment(
    length: Real[Tensor, " B"], max_length: Count, buffer: float
) -> Float[Tensor, " B"]:
    """DAPO's soft punishment (2503.14476, Eq. 13), added to the correctness reward.

        0                                       |y| ≤ L_max − L_cache
        ((L_max − L_cache) − |y|) / L_cache     on the ramp
        −1                                      |y| > L_max

    `length` |y| and `buffer` L_cache in tokens; the ramp ends at `max_length`, L_max.

    Raises `UserError` unless 0 < buffer ≤ max_length.
    """
    if not 0 < buffer <= max_length:
        raise UserError(
            f"buffer must lie in (0, max_length = {max_length}], got {buffer}: it is "
            "the length of the ramp, in tokens, before the limit"
        )
    return ((max_length - buffer - length) / buffer).clamp(-1, 0)


def columns(rows: list[dict]) -> dict[str, list]:
    """A task's rows as the columns that a reward function takes (TRL's signature)."""
    return {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
