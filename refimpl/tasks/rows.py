"""A task and its rows, which we did not write."""

from typing import Any

from refimpl.validation import UserError, one_line, shown

PARTS = ("sample", "held_out", "reward", "habit", "habits")


def rows_of(task: Any, method: str, n: int, seed: int = 0) -> list[dict]:
    """task.method(n, seed); raises `UserError` if it is no task, or these no rows."""
    missing = [part for part in PARTS if not hasattr(task, part)]
    if missing or isinstance(task, type):
        raise UserError(
            f"task must be an object with {', '.join(PARTS)} (see refimpl.tasks), got "
            + shown(task)
            + (f", which lacks {', '.join(missing)}" if missing else "")
        )
    try:
        rows = getattr(task, method)(n, seed)
    except UserError:
        raise  # a sentence already, as of a bad salt
    except Exception as error:
        raise UserError(
            f"task.{method}({n}, {seed}) raised {one_line(error)}"
        ) from error
    several = isinstance(rows, list) and len(rows) > 0
    for row in rows if several else [rows]:
        alike = several and isinstance(row, dict) and row.keys() == rows[0].keys()
        if not (alike and isinstance(row.get("prompt"), str)):
            raise UserError(
                f"task.{method} must return a list of dictionaries with a 'prompt' "
                f"string and the same keys throughout; it returned {shown(row)}"
            )
    if len(rows) != n:
        raise UserError(
            f"task.{method}({n}, {seed}) returned {len(rows)} rows, not {n}"
        )
    return rows
