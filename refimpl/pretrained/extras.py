"""Optional packages of `refimpl.pretrained`, imported when they are needed."""

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
    """Import `module`; raises `UserError` with the pip command if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f'{WHY[module]}: pip install "refimpl[real]" (in a clone: pip install '
            '-e ".[real]")'
        ) from error
