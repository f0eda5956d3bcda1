"""Which commands there are; those of other rooms are found when one is called."""

import importlib
from typing import Any

from refimpl.checks import UserError, nearest

HERE = ("train", "settings", "warm-start", "curves")
ELSEWHERE = {
    "fetch": "real",
    "conformance": "interop",
    "verl-config": "interop",
    "bench": "lab",
    "real": "lab",
    "evidence": "lab",
    "gpu-check": "lab",
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


def room(name: str, asked: str) -> Any:
    """The commands of another room."""
    try:
        return importlib.import_module(f"refimpl.{name}.command")
    except ModuleNotFoundError as error:
        mend = "in a clone, pip install -r requirements.txt"
        raise UserError(f"{asked} needs {error.name}, not installed; {mend}") from error
