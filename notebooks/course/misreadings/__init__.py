"""Executable misreadings: wrong versions that people really write, beside the right.

`wrong` and `right` take the same arguments, so a reader can run both on one example
and see where they part, as a test does. `right` is written out here without the rest
of the package, which the tests hold against it. There is one module
per chapter, and one for the first three.
"""

import importlib
import pkgutil

from course.misreadings.base import Misreading

MISREADINGS: dict[str, Misreading] = {
    misreading.name: misreading
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__))
    if module != "base"
    for misreading in importlib.import_module(f"{__name__}.{module}").MISREADINGS
}

__all__ = ["MISREADINGS", "Misreading"]
