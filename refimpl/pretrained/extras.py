"""Optional packages of `refimpl.pretrained`, imported when they are needed."""

import importlib
import warnings
from types import ModuleType

from refimpl.validation import UserError


def needed(module: str) -> ModuleType:
    """Import `module`; raises `UserError` with the pip command if it is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # a package of theirs
            return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"this needs the package {module.replace('_', '-')}: pip install "
            '"refimpl[real]" (in a clone: pip install -e ".[real]")'
        ) from error
