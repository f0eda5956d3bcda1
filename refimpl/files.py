"""Files that a run writes: tried before the work, so that nothing is lost after it."""

import hashlib
import os
import tempfile
from pathlib import Path


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

    Raises `ValueError` now rather than after an hour of training.
    """
    if not str(path):
        raise ValueError(f"cannot write {what} to '', which is no name; name a folder")
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write {what} to {str(path / file)!r} ({error.strerror or error}); "
            "choose a folder that you may write to"
        ) from error
    return path


def writable_file(path: str | Path, what: str) -> Path:
    """`path` as a file that can be written, its folder made if need be.

    Raises `ValueError` if it is a folder, or lies in one that cannot be written to.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(
            f"cannot write {what} to {str(path)!r}, which is a folder; name a file "
            "in it"
        )
    return writable_folder(path.parent, what, path.name) / path.name
