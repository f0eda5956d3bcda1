"""Executable misreadings: wrong versions that people really write, beside the right.

`wrong` and `right` take the same arguments, so a reader can run both on one example
and see where they part, as a test does. `right` is written out without the rest of the
package, which the tests hold against it; what several need is in `kit.plain`. They
stand in the chapters' folders, `misreadings.py`.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import course


@dataclass(frozen=True)
class Misreading:
    """What is said (`claim`), what is so (`correction`), and both as code."""

    name: str
    claim: str
    correction: str
    wrong: Callable
    right: Callable


def misreading(name: str) -> Misreading:
    """The misreading of that name."""
    return misreadings()[name]


@cache
def misreadings() -> dict[str, Misreading]:
    """All misreadings by name, from the chapters' folders."""
    folders = [one.name for one in pkgutil.iter_modules(course.__path__) if one.ispkg]
    chapters = [name for name in folders if name not in ("kit", "start_here")]
    parts = [importlib.import_module(f"course.{name}.misreadings") for name in chapters]
    return {one.name: one for part in parts for one in part.MISREADINGS}
