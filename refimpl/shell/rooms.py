"""The rooms beside the core, whose commands are found when one is called."""

import importlib
from typing import Any

from refimpl.checks import UserError

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


def room(name: str, asked: str) -> Any:
    """The commands of another room."""
    try:
        return importlib.import_module(f"refimpl.{name}.command")
    except ModuleNotFoundError as error:
        mend = "in a clone, pip install -r requirements.txt"
        raise UserError(f"{asked} needs {error.name}, not installed; {mend}") from error
