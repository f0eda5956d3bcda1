"""Files that a run writes, all of them through `write`; tried before the work."""

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable
from functools import partial
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

    A regular file is written beside its target and renamed, keeping its mode. A
    symbolic link is followed; a pipe or a device is written to, never replaced. Raises
    `OSError` if it cannot be written: what was there before is then untouched.
    """
    if isinstance(fill, str):
        fill = partial(_put, fill)
    path = Path(path)
    binary: dict = {"mode": "wb"} if "b" in mode else {"mode": "w", "newline": ""}
    if not binary["mode"].endswith("b"):
        binary["encoding"] = "utf-8"
    if path.exists() and not path.is_file():
        with open(path, **binary) as file:
            fill(file)
        return
    path = Path(os.path.realpath(path))  # which a pipe behind /dev/stdout has not
    handle, scratch = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    try:
        with open(handle, **binary) as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        before = path.stat().st_mode if path.exists() else 0o666 & ~_umask()
        os.chmod(scratch, stat.S_IMODE(before))
        os.replace(scratch, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(scratch)


def _put(text: str, file: IO) -> None:
    file.write(text)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def writable_folder(path: str | Path, what: str, file: str = "") -> Path:
    """`path` as a folder that can be written to, made if need be; `file` is for there.

    Raises `UserError` now rather than after an hour of training.
    """
    if not str(path):
        raise UserError(f"cannot write {what} to '', which is no name; name a folder")
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UserError(
            f"cannot write {what} to {str(path / file)!r} ({error.strerror or error}); "
            "choose a folder that you may write to"
        ) from error
    return path


def writable_file(path: str | Path, what: str) -> Path:
    """`path` as a file that can be written, its folder made if need be.

    Raises `UserError` if it is a folder, or lies in one that cannot be written to.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(
            f"cannot write {what} to {str(path)!r}, which is a folder; name a file "
            "in it"
        )
    if path.exists() and not path.is_file():  # a pipe or a device
        return path
    return writable_folder(path.parent, what, path.name) / path.name
