"""Where a command writes: outputs apart from one another, and who reads along."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from refimpl.checks import UserError


def check_apart(
    files: Mapping[str, Path | None], folders: Mapping[str, Path | None]
) -> None:
    """Raise `UserError` if two outputs are one file, or one lies where weights do.

    `files` and `folders`, by the names that the user knows them by; None is not asked
    for. Only the folders are free of other files: what is saved there comes as several.
    """
    taken: dict[str, str] = {}
    for name, path in (*folders.items(), *files.items()):
        if path is None or (path.exists() and not (path.is_file() or path.is_dir())):
            continue  # pipes and devices take several
        place = os.path.realpath(path)
        for there in (place, os.path.dirname(place)):
            if there in taken and (there == place or taken[there] in folders):
                raise UserError(
                    f"{name} {str(path)!r} would be written over, or into, what "
                    f"{taken[there]} names; give each a place of its own"
                )
        taken[place] = name


class Unbroken:
    """A text stream that nobody has to read: a closed pipe or terminal ends no run."""

    def __init__(self, stream: IO[str]):
        self._stream = stream

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As the stream does, while there is one."""
        with self._whole():
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """As the stream does, while there is one."""
        with self._whole():
            self._stream.flush()

    @contextlib.contextmanager
    def _whole(self):
        try:
            yield
        except OSError:  # what is still in its buffer goes nowhere, and says nothing
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)
