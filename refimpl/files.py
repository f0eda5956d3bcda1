"""Files that a run writes, all of them through `write`; tried before the work."""

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from refimpl.checks import UserError


def cache_folder() -> Path:
    """`$REFIMPL_CACHE`, else `refimpl` under the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("REFIMPL_CACHE") or Path(home) / "refimpl")


def digest(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write(
    path: str | Path, fill: str | Callable[[IO], object], mode: str = "w"
) -> None:
    """A text, or what `fill(file)` writes, stands at `path`, or nothing of it does.

    A regular file is written beside its target, brought to the disk and renamed; it
    keeps its mode and owner. A symbolic link is followed; a pipe or a device is written
    to, never replaced. Raises `OSError` if it cannot be written: what was there before
    is then untouched.
    """
    how: dict = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    path = Path(path)
    if path.exists() and not path.is_file():
        with open(path, mode, **how) as file:
            _put(fill, file)
        return
    path = Path(os.path.realpath(path))  # which a pipe behind /dev/stdout has not
    before = path.stat() if path.exists() else None
    handle, scratch = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    try:
        with open(handle, mode, **how) as file:
            _put(fill, file)
            to_disk(file)
        os.chmod(scratch, before.st_mode & 0o7777 if before else 0o666 & ~_umask())
        if before and hasattr(os, "chown"):
            with contextlib.suppress(PermissionError):  # another's, in a shared folder
                os.chown(scratch, before.st_uid, before.st_gid)
        os.replace(scratch, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
    _names_to_disk(path.parent)


def write_folder(folder: str | Path, fill: Callable[[Path], object]) -> None:
    """The files that `fill(folder)` writes, each whole; others in `folder` stay.

    Raises `UserError` if they cannot be written; what was there is then untouched.
    """
    with tempfile.TemporaryDirectory(prefix=".new.", dir=folder) as scratch:
        try:
            fill(Path(scratch))
        except Exception as error:  # safetensors' own, of a full disk
            raise UserError(f"cannot write to {str(folder)!r} ({error})") from error
        files = sorted(Path(scratch).iterdir())
        for file in files:
            with open(file, "rb") as written:
                to_disk(written)
        for file in files:
            os.replace(file, Path(folder) / file.name)
    _names_to_disk(folder)


def _put(fill: str | Callable[[IO], object], file: IO) -> None:
    if isinstance(fill, str):
        file.write(fill)
    else:
        fill(file)


def to_disk(file: IO) -> None:
    """Without this, a loss of power leaves a file of the right name and no content."""
    file.flush()
    os.fsync(file.fileno())


def _names_to_disk(folder: str | Path) -> None:
    with contextlib.suppress(OSError):  # Windows opens no folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # a name that holds NUL
        raise _unwritable(what, Path(path) / file, error) from error
    return folder


def writable_file(path: str | Path, what: str) -> Path:
    """`path` as a file that can be written, its folder made if need be.

    Raises `UserError` if it is a folder or read-only, if its name is none that a file
    can have, or if it lies where it cannot be written.
    """
    try:
        there = os.stat(path).st_mode
    except FileNotFoundError:  # or a link to nothing
        target = Path(os.path.realpath(path) if os.path.islink(path) else path)
        writable_folder(target.parent, what, target.name)
        return Path(path).absolute()
    except (OSError, ValueError) as error:  # too long, NUL, a circle of links
        raise _unwritable(what, path, error) from error
    if stat.S_ISDIR(there):
        raise UserError(
            f"cannot write {what} to {str(path)!r}, which is a folder; name a file "
            "in it"
        )
    if stat.S_ISSOCK(there) or not (there & 0o222 and os.access(path, os.W_OK)):
        raise _unwritable(what, path, "it is a socket or read-only")
    if stat.S_ISREG(there):
        writable_folder(Path(os.path.realpath(path)).parent, what, Path(path).name)
    return Path(path).absolute()


def _unwritable(what: str, path: str | Path, why: object) -> UserError:
    why = getattr(why, "strerror", None) or why
    return UserError(
        f"cannot write {what} to {str(path)!r} ({why}); choose a place that you may "
        "write to"
    )
