"""What a reader has solved in JupyterLab, kept in one small file that they may delete.

`notebooks/.progress.json` lists the keys of right answers, `["0.1", "02.gae"]`, the
latest last. Git ignores it. A Jupyter server gives `JPY_SESSION_NAME` to the kernel of
a notebook that it opens. Without this variable, as in tests and wherever chapters are
executed, the file is neither read nor written.
"""

import contextlib
import json
import os
from pathlib import Path

from IPython import get_ipython

import course
from refimpl.files import write
from refimpl.validation import UserError

FILE = Path(course.__file__).resolve().parents[1] / ".progress.json"


def is_kept() -> bool:
    """Tell whether this is such a kernel, and not a program that it started."""
    return "JPY_SESSION_NAME" in os.environ and get_ipython() is not None


def solved() -> list[str]:
    """The keys of what was solved, the latest last; none if the file is damaged."""
    with contextlib.suppress(OSError, ValueError):
        if is_kept() and isinstance(found := json.loads(FILE.read_bytes()), list):
            return [key for key in found if isinstance(key, str)]
    return []


def remember(key: str) -> None:
    """Add a key at the end. Where the file cannot be written, nothing is kept."""
    if is_kept():
        keys = [*(one for one in solved() if one != key), key]
        with contextlib.suppress(OSError, UserError):
            write(FILE, json.dumps(keys))


def say_where() -> None:
    """Print in one line where the reader stopped, if anything was solved."""
    if keys := solved():
        print(
            f"You stopped in chapter {chapter(keys[-1])}, after {name(keys[-1])}. "
            "kit.progress() shows what you have solved, and what is open."
        )


def chapter(key: str) -> str:
    """The chapter as its file is numbered: "02b" for "2b.1" and "02b.k3_loss"."""
    number = key.partition(".")[0]
    return number.zfill(2 if number.isdigit() else 3)


def name(key: str) -> str:
    """The name of a function to type, or the number of an exercise."""
    last = key.partition(".")[2]
    return last if last.isidentifier() else key
