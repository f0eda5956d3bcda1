"""Exercises and typed cells that name your mistake.

    check("1.2", my_function)
    grpo_loss = typed("03.grpo_loss", grpo_loss)

They stand in the chapters' folders, `exercises.py`, with their solutions.
"""

import copy
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import torch

import course
from course.kit.exercise import EMPTY, RIGHT, WRONG, Exercise, judge, judged


def exercises() -> dict[str, Exercise]:
    """All exercises by key, from the chapters' folders."""
    return _gathered("EXERCISES")


def typed_cells() -> dict[str, Exercise]:
    """The functions that a reader types in the chapters, as "03.grpo_loss"."""
    return _gathered("TYPED")


def _gathered(name: str) -> dict[str, Exercise]:
    folders = [one.name for one in pkgutil.iter_modules(course.__path__) if one.ispkg]
    known = {}
    for folder in (one for one in folders if one != "kit"):
        part = importlib.import_module(f"course.{folder}.exercises")
        known.update({one.key: one for one in getattr(part, name, ())})
    return dict(sorted(known.items()))


def check(key: str, attempt: Any) -> None:
    """Print what is right or wrong about `attempt`."""
    print(verdict(key, attempt))


def verdict(key: str, attempt: Any) -> str:
    """The sentence that `check` prints."""
    known = exercises()
    if isinstance(key, str) and key in known:
        return judged(known[key], attempt)
    if not isinstance(key, str):
        return f'✗ The number of an exercise is a text in quotation marks: "{key}".'
    chapter = key.partition(".")[0]
    here = [one for one in known if one.startswith(f"{chapter}.")] or ["0.1", "1.1"]
    return (
        f"✗ {key} has no check. Projects have a rubric instead; the exercises here are "
        f"{', '.join(here)}."
    )


def same_kind(exercise: Exercise, attempt: Callable) -> bool:
    """A tensor where the solution returns one: the cells below calculate with it."""
    first, *_ = exercise.cases
    mine, right = (f(*copy.deepcopy(first)) for f in (attempt, exercise.solution))
    return isinstance(mine, torch.Tensor) or not isinstance(right, torch.Tensor)


def typed(key: str, attempt: Callable) -> Callable:
    """The reader's function if it is right, else the solution; prints which one.

    So the cells below run whether or not anything was typed.
    """
    known = typed_cells()
    if key not in known:
        raise KeyError(f"nothing is typed under {key!r}; there are {', '.join(known)}")
    mark, says = judge(known[key], attempt)
    if mark == RIGHT and not same_kind(known[key], attempt):
        mark, says = WRONG, "The numbers are right, but return a tensor."
    name = key.partition(".")[2]
    if mark == RIGHT:
        print(f"✓ {name}  Right. The cells below run your function.")
        return attempt
    if mark == EMPTY:
        print(f"… {name}  Nothing typed yet: the cells below run the solution.")
    else:
        print(f"✗ {name}  {says} Until it is right, the cells below run the solution.")
    return known[key].solution
