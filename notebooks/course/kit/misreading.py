"""Executable misreadings: wrong versions that people write, next to the right one.

`wrong` and `right` take the same arguments, so a reader, like a test, can run both on
one example and see where they differ. `right` is written out without the rest of the
package, so that the tests can compare the two; shared parts are in `kit.plain`. The
misreadings are in the chapters' folders, in `misreadings.py`.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from IPython.display import Markdown

import course
from course.kit.exercise import edited


@dataclass
class Misreading:
    """A mistaken `claim`, its `correction`, and both as code.

    A dict for `wrong` stands for the right function with its keys' text replaced.
    """

    name: str
    claim: str
    correction: str
    wrong: Callable | dict[str, str]
    right: Callable

    def __post_init__(self):
        if isinstance(self.wrong, dict):
            self.wrong = edited(self.right, self.wrong)

    def told(self) -> Markdown:
        """The correction, as a page shows it."""
        return Markdown(self.correction)


def misreading(name: str) -> Misreading:
    """Return the misreading of that name."""
    return misreadings()[name]


@cache
def misreadings() -> dict[str, Misreading]:
    """All misreadings by name, from the chapters' folders."""
    folders = [one.name for one in pkgutil.iter_modules(course.__path__) if one.ispkg]
    without = "kit", "start_here", "stale_data", "memory", "tour"
    chapters = [name for name in folders if name not in without]
    parts = [importlib.import_module(f"course.{name}.misreadings") for name in chapters]
    return {one.name: one for part in parts for one in part.MISREADINGS}
