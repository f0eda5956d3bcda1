"""Calling a reward function that we did not write."""

import math
from collections.abc import Callable, Collection
from dataclasses import is_dataclass

from jaxtyping import Float, Real
from torch import Tensor

from refimpl.checks import Count, UserError, guarded, one_line


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
        rewards = reward(
            prompts=list(prompts), completions=list(completions), **columns
        )
    except Exception as error:
        raise UserError(
            f"the reward function {name} raised {one_line(error)}. It is called as "
            "f(prompts=…, completions=…, "
            f"{', '.join(f'{c}=…' for c in columns)}); take **columns for the rest"
        ) from error
    try:
        got: int | str = len(rewards)
    except TypeError:  # None, one number, a generator, a tensor without dimensions
        got = repr(rewards)
    if got != len(completions):
        raise UserError(
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
            raise UserError(
                f"the reward function {name} returned {value!r} for "
                f"{completion[:80]!r}; every reward must be a finite number"
            )
        checked.append(number)
    return checked


def scored(
    reward: Callable, prompts, completions, columns: dict
) -> tuple[list[float], dict[str, list[float]]]:
    """What `reward` pays, and what each of its `components` does, if it has them.

    `components` is a dictionary name → reward function. A reward with a function
    `total` (as `refimpl.real.rewards.Sum`) is paid by that of them; any other is called
    itself, and its components beside it, for the record.
    """
    components = getattr(reward, "components", None)
    parts = {
        name: score(part, prompts, completions, columns, component=name)
        for name, part in (components.items() if isinstance(components, dict) else ())
    }
    total = getattr(reward, "total", None)
    if total is None:
        return score(reward, prompts, completions, columns), parts
    return total(parts), parts


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
