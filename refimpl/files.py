"""Files and folders: written whole or not at all, and tried before any work."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from refimpl.validation import UserError


class CheckpointError(OSError):
    """A checkpoint could not be written; the one before it is untouched."""


def write(
    path: str | Path, fill: str | Callable[[IO], object], mode: str = "w"
) -> None:
    """Write the text `fill`, or what `fill(file)` writes, to `path`: all or nothing.

    Raises `UserError` if `path` cannot be written; an existing file then stays.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # such as /dev/null
        raise unwritable("a file", path, "it is something else")
    how: dict = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    try:
        target = Path(os.path.realpath(path))  # keeps a symbolic link
        part = target.with_name(f".{target.name}.part")
        target.parent.mkdir(parents=True, exist_ok=True)
        file = open(part, mode, **how)  # noqa: SIM115
    except (OSError, ValueError) as error:  # an impossible name
        raise unwritable("a file", path, error) from error
    try:
        with file:
            file.write(fill) if isinstance(fill, str) else fill(file)
            file.flush()
            os.fsync(file.fileno())  # else a loss of power may leave an empty file
        os.replace(part, target)
    except OSError as error:
        raise unwritable("a file", path, error) from error
    finally:
        part.unlink(missing_ok=True)


def check_output(path: Path, replaces: bool = True, folder: bool = False) -> None:
    """Raise `UserError`, before any work, if `path` is taken or cannot be written."""
    kind = "a folder" if folder else "a file"
    there = next(p for p in (path, *path.absolute().parents) if os.path.exists(p))
    if there == path and not replaces:
        raise UserError(
            f"'{path}' exists already: name another place, or give --overwrite"
        )
    if there.is_dir() != (folder or there != path):
        raise unwritable(kind, path, f"'{there}' is in the way")
    if not os.access(there, os.W_OK):
        raise unwritable(kind, path, f"'{there}' is not writable")


def cache_folder() -> Path:
    """Return `$REFIMPL_CACHE`, or else `refimpl` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("REFIMPL_CACHE") or Path(home) / "refimpl")


def writable_folder(path: str | Path, what: str) -> Path:
    """Make `path` a folder if necessary, and test that it can be written to.

    Returns an absolute path, which stays valid if the working directory changes. Raises
    `UserError`, before any training.
    """
    try:
        folder = Path(path).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:  # a name that holds NUL
        raise unwritable(what, path, error) from error
    return folder


def unwritable(what: str, path: str | Path, why: object) -> UserError:
    """Make the error for a place that cannot be written to."""
    why = getattr(why, "strerror", None) or why
    return UserError(
        f"cannot write {what} to {str(path)!r} ({why}); choose a place that you may "
        "write to"
    )
