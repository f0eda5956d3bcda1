"""Helpers that several chapters share; they import no chapter by name."""

from course.kit.by_hand import answers, compare, show
from course.kit.exercise import check, typed
from course.kit.misreading import misreading
from course.kit.runs import of_runs, watched
from course.kit.tables import as_table

__all__ = [
    "answers",
    "as_table",
    "check",
    "compare",
    "misreading",
    "of_runs",
    "show",
    "typed",
    "watched",
]
