"""Optional packages of `refimpl.pretrained`, imported when they are needed."""

import importlib
from types import ModuleType

from refimpl.validation import UserError


def needed(module: str) -> ModuleType:
    """Import `module`; raises `UserError` with the pip command if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"this needs the package {module.replace('_', '-')}: pip install "
            '"refimpl[real]" (in a clone: pip install -e ".[real]")'
        ) from error
