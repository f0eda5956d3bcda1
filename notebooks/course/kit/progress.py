"""Show what a reader has solved, chapter by chapter."""

from collections import defaultdict

from course.kit.exercise import exercises, typed_cells
from course.kit.solved import chapter, name, solved
from course.kit.tables import as_table


def progress() -> None:
    """Show a table: each chapter, its exercises solved and in all, and what is open."""
    rows = defaultdict(list)
    for key in [*typed_cells(), *exercises()]:
        rows[chapter(key)].append(key)
    done = set(solved())
    table = [
        [number, f"{sum(key in done for key in keys)} / {len(keys)}", _open(keys, done)]
        for number, keys in sorted(rows.items())
    ]
    as_table(table, ["chapter", "solved", "open"])


def _open(keys: list[str], done: set[str]) -> str:
    """What is left to solve, or "all"."""
    left = [name(key) for key in keys if key not in done]
    return "all" if len(left) == len(keys) else ", ".join(left)
