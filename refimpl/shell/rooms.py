"""Which commands there are; those of other rooms are found when one is called."""

import contextlib
import importlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from refimpl.validation import UserError, nearest

HERE = ("train", "settings", "warm-start", "curves")
ELSEWHERE = {
    "fetch": "pretrained",
    "conformance": "interop",
    "read-log": "interop",
    "verl-config": "interop",
}
"""Commands of the other rooms: `refimpl.ROOM.command.COMMANDS` has them."""


def check_command(name: str) -> None:
    """Raise `UserError` with the nearest name and all of them, if it is none."""
    known = [*HERE, *ELSEWHERE]
    if name not in known:
        wrong = f"there is no command {name!r}{nearest(name, known)}"
        raise UserError(
            f"{wrong if name else 'name a command'}; the commands are "
            f"{', '.join(known)} (COMMAND --help explains one)"
        )


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """While libraries are imported, Ctrl-C ends the process at once.

    There is nothing to keep, and what is raised in the midst of an import may be
    swallowed, or come as another error.
    """

    def end(number: int, _) -> None:
        os.write(2, b"interrupted\n")
        os._exit(128 + number)

    ours = threading.current_thread() is threading.main_thread()
    ours = ours and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def room(name: str, asked: str) -> Any:
    """The commands of another room."""
    try:
        with loading():
            return importlib.import_module(f"refimpl.{name}.command")
    except ModuleNotFoundError as error:
        mend = "in a clone, pip install -r requirements.txt"
        raise UserError(f"{asked} needs {error.name}, not installed; {mend}") from error
