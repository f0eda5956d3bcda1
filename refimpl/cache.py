"""The user's cache: where it is, whether it can be written to, and a file's digest."""

import hashlib
import os
import tempfile
from pathlib import Path

from refimpl.validation import UserError


def cache_folder() -> Path:
    """`$REFIMPL_CACHE`, else `refimpl` under the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("REFIMPL_CACHE") or Path(home) / "refimpl")


def digest(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def writable_folder(path: str | Path, what: str, file: str = "") -> Path:
    """`path` as a folder that can be written to, made if need be; `file` is for there.

    Absolute, so that it stays the same if the working directory changes. Raises
    `UserError` now rather than after an hour of training.
    """
    if not str(path):
        raise UserError(f"cannot write {what} to '', which is no name; name a folder")
    try:
        folder = Path(path).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:  # a name that holds NUL
        raise unwritable(what, Path(path) / file, error) from error
    return folder


def unwritable(what: str, path: str | Path, why: object) -> UserError:
    """The sentence about a place that cannot be written to, whatever the reason."""
    why = getattr(why, "strerror", None) or why
    return UserError(
        f"cannot write {what} to {str(path)!r} ({why}); choose a place that you may "
        "write to"
    )
