"""Packages that only a part of this room needs: there, or a word how to get them."""

import importlib
from types import ModuleType

from refimpl.validation import UserError

WHY = {
    "peft": "a LoRA needs peft",
    "accelerate": "fetching a model needs accelerate",
    "gguf": "fetching a model needs gguf",
    "reasoning_gym": "this task needs reasoning-gym, which is not in requirements.txt "
    "because a part of it has to be compiled",
    "math_verify": "comparing mathematics needs math-verify, which is not in "
    "requirements.txt because no chapter does so",
}


def needed(module: str) -> ModuleType:
    """`module`, imported; a `UserError` says how to install what is not there."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f'{WHY[module]}: pip install "refimpl[real]" (in a clone: pip install '
            '-e ".[real]")'
        ) from error
