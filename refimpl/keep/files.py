"""Files that a run writes, all of them through `write`; tried before the work."""

import contextlib
import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from refimpl.checkpoint import unwritable, writable_folder
from refimpl.validation import UserError, one_line

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A disk, a quota, a file that may not grow."""
UNFINISHED, DAY = ".unfinished", 86_400
"""How scratch files end, and the seconds after which one is nobody's any more."""


def write(
    path: str | Path, fill: str | Callable[[IO], object], mode: str = "w"
) -> None:
    """A text, or what `fill(file)` writes, stands at `path`, or nothing of it does.

    A regular file is written beside its target, brought to the disk and renamed; it
    keeps its mode and owner. A symbolic link is followed; a pipe or a device is written
    to, never replaced. Raises `OSError` if it cannot be written: what was there before
    is then untouched.
    """
    try:
        _write(Path(path), fill, mode)
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            error.filename = str(path)  # a full disk does not say of which file
        raise


def _write(path: Path, fill: str | Callable[[IO], object], mode: str) -> None:
    how: dict = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    if path.exists() and not path.is_file():
        with open(path, mode, **how) as file:
            _put(fill, file)
        return
    path = Path(os.path.realpath(path))  # which a pipe behind /dev/stdout has not
    before = path.stat() if path.exists() else None
    prefix = f".{path.name[:40]}."
    sweep(path.parent, prefix)
    handle, scratch = tempfile.mkstemp(UNFINISHED, prefix, path.parent)
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
    sweep(folder, ".new.")
    with tempfile.TemporaryDirectory(UNFINISHED, ".new.", folder) as scratch:
        try:
            fill(Path(scratch))
        except Exception as error:  # safetensors' own, of a full disk
            raise UserError(
                f"cannot write to {str(folder)!r} ({one_line(error)})"
            ) from error
        files = sorted(Path(scratch).iterdir())
        for file in files:
            with open(file, "rb") as written:
                to_disk(written)
        for file in files:
            os.replace(file, Path(folder) / file.name)
    _names_to_disk(folder)


def sweep(folder: str | Path, prefix: str, older: float = DAY) -> None:
    """Remove what a killed process left half-written, `older` seconds ago or more."""
    with contextlib.suppress(OSError):
        for path in Path(folder).iterdir():
            ours = path.name.startswith(prefix) and path.name.endswith(UNFINISHED)
            if ours and time.time() - path.lstat().st_mtime >= older:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


@contextlib.contextmanager
def unmade(*folders: str | Path | None) -> Iterator[None]:
    """Of these folders and those above them, what is made in here and is empty at the
    end goes again: a run that is refused leaves nothing behind."""
    paths = [Path(folder).absolute() for folder in folders if folder]
    above = {part for path in paths for part in (path, *path.parents)}
    new = [path for path in above if not os.path.exists(path)]
    try:
        yield
    finally:
        for path in sorted(new, reverse=True):  # the inner ones first
            with contextlib.suppress(OSError, ValueError):  # a name that holds NUL
                path.rmdir()


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


def check_name(path: str | Path, what: str) -> None:
    """Raise `UserError` if what writes weights cannot take such a name."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise unwritable(what, path, "its name is not UTF-8") from None


def writable_file(path: str | Path, what: str) -> Path:
    """`path` as a file that can be written, its folder made if need be.

    Raises `UserError` if it is a folder or read-only, if its name is none that a file
    can have, or if it lies where it cannot be written.
    """
    if not str(path):
        raise UserError(f"cannot write {what} to '', which is no name; name a file")
    if os.path.basename(path) in ("", ".", ".."):
        raise _is_folder(what, path)
    try:
        there = os.stat(path).st_mode
    except FileNotFoundError:  # or a link to nothing
        target = Path(os.path.realpath(path) if os.path.islink(path) else path)
        folder = writable_folder(target.parent, what, target.name)
        try:  # only now the system says whether the name is too long
            (folder / target.name).exists()
        except OSError as error:
            raise unwritable(what, path, error) from error
        return Path(path).absolute()
    except (OSError, ValueError) as error:  # too long, NUL, a circle of links
        raise unwritable(what, path, error) from error
    if stat.S_ISDIR(there):
        raise _is_folder(what, path)
    if stat.S_ISSOCK(there) or not (there & 0o222 and os.access(path, os.W_OK)):
        raise unwritable(what, path, "it is a socket or read-only")
    if stat.S_ISREG(there):
        writable_folder(Path(os.path.realpath(path)).parent, what, Path(path).name)
    return Path(path).absolute()


def _is_folder(what: str, path: str | Path) -> UserError:
    return UserError(
        f"cannot write {what} to {str(path)!r}, which is a folder; name a file in it"
    )
