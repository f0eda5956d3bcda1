"""Executable misreadings: wrong versions that people really write, beside the right.

`wrong` and `right` take the same arguments, so a reader can run both on one example
and see where they part, as a test does. `right` is written out without the rest of the
package, which the tests hold against it; what several need is in `kit.plain`. They
stand in the chapters' folders, `misreadings.py`.
"""

import importlib
import pkgutil

import course
from course.kit.misreading import Misreading

MISREADINGS: dict[str, Misreading] = {
    misreading.name: misreading
    for folder in pkgutil.iter_modules(course.__path__)
    if folder.ispkg and folder.name not in ("kit", "start_here")
    for misreading in importlib.import_module(
        f"course.{folder.name}.misreadings"
    ).MISREADINGS
}
