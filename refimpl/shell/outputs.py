"""Where a command writes: outputs apart from one another, and who reads along."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from refimpl.keep.files import FULL
from refimpl.validation import UserError


def check_apart(
    files: Mapping[str, str | Path | None], folders: Mapping[str, str | Path | None]
) -> None:
    """Raise `UserError` if two outputs are one file, if one is to lie below a file, or
    where weights do.

    `files` and `folders`, by the names that the user knows them by; None is not asked
    for. Only the folders are free of other files: what is saved there comes as several.
    """
    taken: dict[Path, str] = {}
    for name, path in (*folders.items(), *files.items()):
        if path is None or (os.path.exists(path) and not _stays(path)):
            continue  # pipes and devices take several
        place = Path(os.path.realpath(path))
        if name in files and os.path.isdir(place):
            continue  # `writable_file` has a sentence of its own
        for other, its in taken.items():
            into = place.parent == other and its in folders
            below = name in files and place in other.parents
            under = its in files and other in place.parents
            if place == other or into or below or under:
                raise UserError(
                    f"{name} {str(path)!r} would be written over, or into, what "
                    f"{its} names; give each a place of its own"
                )
        taken[place] = name


def _stays(path: str | Path) -> bool:
    """Whether it is a file or folder, where one output would replace another."""
    return os.path.isfile(path) or os.path.isdir(path)


class Unbroken:
    """A text stream that nobody has to read: a closed pipe or terminal ends no run.

    What its encoding lacks is written as an escape. A full disk is an error, where the
    stream is `needed`: the output went into a file.
    """

    def __init__(self, stream: IO[str] | None, needed: bool = False):
        if stream is None or stream.closed:  # as a daemon's
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        self._stream = stream
        self._needed = needed

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As the stream does, while there is one."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        known = text.encode(encoding, "backslashreplace").decode(encoding)
        with self._whole():
            self._stream.write(known)
        return len(text)

    def flush(self) -> None:
        """As the stream does, while there is one."""
        with self._whole():
            self._stream.flush()

    @contextlib.contextmanager
    def _whole(self):
        try:
            yield
        except OSError as error:  # what is still in its buffer goes nowhere
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
            if self._needed and error.errno in FULL:
                error.filename = "the output"
                raise
