"""Exercises that name your mistake.

    check("1.2", my_function)

They stand in the chapters' folders, `exercises.py`, with their solutions.
"""

import importlib
import pkgutil
from typing import Any

import course
from course.kit.exercise import Exercise, judged


def exercises() -> dict[str, Exercise]:
    """All exercises by key, from the chapters' folders."""
    folders = [one.name for one in pkgutil.iter_modules(course.__path__) if one.ispkg]
    known = {}
    for name in (one for one in folders if one != "kit"):
        part = importlib.import_module(f"course.{name}.exercises")
        known.update({exercise.key: exercise for exercise in part.EXERCISES})
    return dict(sorted(known.items()))


def check(key: str, attempt: Any) -> None:
    """Print what is right or wrong about `attempt`."""
    print(verdict(key, attempt))


def verdict(key: str, attempt: Any) -> str:
    """The sentence that `check` prints. Raises `KeyError` on an unknown exercise."""
    known = exercises()
    if not isinstance(key, str) or key not in known:
        hint = "" if isinstance(key, str) else ", a text in quotation marks"
        raise KeyError(f"no exercise {key!r}; there are{hint}: {', '.join(known)}")
    return judged(known[key], attempt)
