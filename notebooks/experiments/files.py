"""Files of results: tried before the work, replaced as a whole after it."""

import os
from pathlib import Path
from typing import IO

from refimpl.validation import UserError

DATA = Path(__file__).parents[2] / "figures" / "data"
"""The folder of the stored results, wherever a command is called from."""


def check_writable(path: Path, what: str) -> None:
    """Make the folder of `path`. Raises `UserError` if `what` cannot be written there.

    Hours of work follow, and their result would be lost.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_folder = path.is_dir()
        allowed = os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError as error:
        reason = error.strerror
    else:
        reason = "it is a folder" if is_folder else "" if allowed else "it is read-only"
    if reason:
        raise UserError(f"cannot write {what} to {str(path)!r}: {reason}")


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a process killed meanwhile leaves the old one or the new."""
    scratch = path.with_name(f".{path.name}.unfinished")
    with open(scratch, "wb") as file:
        file.write(content)
        to_disk(file)
    os.replace(scratch, path)


def to_disk(file: IO) -> None:
    """Wait until the file is on the disk; else a loss of power may leave it empty."""
    file.flush()
    os.fsync(file.fileno())
