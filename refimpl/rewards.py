"""Calling a reward function that we did not write, and adding several up."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, is_dataclass

from jaxtyping import Float, Real
from torch import Tensor

from refimpl.arguments import guarded
from refimpl.settings import Count, plain, shown


@guarded
def score(
    reward: Callable,
    prompts: Collection[str],
    completions: Collection[str],
    columns: dict,
    component: str | None = None,
) -> list[float]:
    """reward(prompts, completions, **columns), checked: one finite number each.

    TRL's signature. Raises `ValueError` that says which completion was at fault, with
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


@dataclass(frozen=True, eq=False, repr=False)
class Sum:
    """Several reward functions as one: Σ weight · component.

        Sum({"correct": task.reward, "format": in_a_box}, weights=(1.0, 0.2))

    A history then has the columns `rewards/correct/mean` and `rewards/format/mean`, of
    the components as they are, without weights. None: every weight is 1.

    Raises `TypeError` or `ValueError` if a component is no function, a name no text, or
    there is not one finite weight each.
    """

    components: dict[str, Callable]
    weights: Sequence[float] | None = None

    def __post_init__(self):
        parts = plain(self.components)
        if not isinstance(parts, dict) or not parts:
            raise TypeError(
                "components must be a dictionary of at least one reward function, "
                f"name → function, got {shown(self.components)}"
            )
        for name, part in parts.items():
            if not isinstance(name, str) or not name or not name.isprintable():
                raise TypeError(
                    f"a component's name must be text of one line, got {shown(name)}: "
                    "it becomes the column rewards/NAME/mean"
                )
            if not callable(part) or isinstance(part, type):
                raise TypeError(
                    f"the component {name!r} must be a function, got {shown(part)}"
                )
        given = [1.0] * len(parts) if self.weights is None else plain(self.weights)
        listed = given.tolist() if hasattr(given, "tolist") else given
        if not isinstance(listed, list | tuple) or len(listed) != len(parts):
            raise ValueError(
                f"weights must be {len(parts)} numbers, one for each of "
                f"{', '.join(parts)}; got {shown(self.weights)}"
            )
        for name, weight in zip(parts, listed):
            number = isinstance(weight, int | float) and not isinstance(weight, bool)
            if not number or not math.isfinite(weight):
                raise ValueError(
                    f"the weight of {name!r} must be a finite number, got "
                    f"{shown(weight)}"
                )
        object.__setattr__(self, "components", dict(parts))
        object.__setattr__(self, "weights", tuple(map(float, listed)))

    def __repr__(self) -> str:
        """The same in every process, so that a checkpoint knows it again."""
        parts = zip(self.components.items(), self.weights)
        return f"Sum({' + '.join(f'{w:g}·{n}={identity(f)}' for (n, f), w in parts)})"

    def __call__(self, prompts, completions, **columns) -> list[float]:
        return scored(self, prompts, completions, columns)[0]


def scored(
    reward: Callable, prompts, completions, columns: dict
) -> tuple[list[float], dict[str, list[float]]]:
    """What `reward` pays, and what each of its `components` does, if it has them.

    A `Sum`'s are called once. Any other function may have an attribute `components`
    (name → reward function): these are called for the record, beside it.
    """
    own = getattr(reward, "components", None)
    parts = {
        name: score(part, prompts, completions, columns, component=name)
        for name, part in (own.items() if isinstance(own, dict) else ())
    }
    if not isinstance(reward, Sum):
        return score(reward, prompts, completions, columns), parts
    paid = zip(*parts.values(), strict=True)
    totals = [sum(w * v for w, v in zip(reward.weights, row)) for row in paid]
    return totals, parts


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


def check_task(task) -> None:
    """Raise `TypeError` if `task` lacks one of the five parts of a task."""
    parts = ("sample", "held_out", "reward", "habit")
    missing = [name for name in parts if not callable(getattr(task, name, None))]
    if not isinstance(getattr(task, "habits", None), Collection):
        missing.append("habits")
    if missing or isinstance(task, type):
        raise TypeError(
            f"task must have the functions {', '.join(parts)} and a list of habits "
            f"(see refimpl.tasks); {shown(task)} "
            + (f"lacks {', '.join(missing)}" if missing else "is a class, no object")
        )


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
