"""Helpers that several chapters share; they import no chapter by name.

In a notebook `rl` is the library and `kit` the course around it: `kit.typed` and
`kit.check` judge what a reader writes, `kit.solution` shows a solution, `kit.answers`
are three small answers, `kit.show` and `kit.compare` print their tokens, `kit.as_table`
shows a table, `kit.watched` counts runs under a bar, `kit.count_rollouts` the rollouts
of the current one, and `kit.of_runs` summarises their results.
`kit.progress` shows what was solved; the import says where the reader stopped.
"""

from course.kit import claims, exercise_runs, habits, plots, stale
from course.kit.by_hand import answers, compare, show
from course.kit.exercise import check, solution, typed
from course.kit.misreading import misreading
from course.kit.progress import progress
from course.kit.runs import count_rollouts, of_runs, watched
from course.kit.solved import say_where
from course.kit.tables import as_table

__all__ = [
    "answers",
    "as_table",
    "check",
    "claims",
    "compare",
    "count_rollouts",
    "exercise_runs",
    "habits",
    "misreading",
    "of_runs",
    "plots",
    "progress",
    "show",
    "solution",
    "stale",
    "typed",
    "watched",
]

say_where()
