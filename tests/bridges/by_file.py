"""An engine's losses out of their file, without the engine: its own packages are not
run, and what they import and no loss needs is a stand-in."""

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock


def losses(address: str, *absent: str) -> ModuleType:
    """The module of this address, with stand-ins for those that are absent.

    Its top package is looked for where Python looks; a checkout is found with
    PYTHONPATH, a wheel after `pip install --no-deps`.
    """
    top, *_ = address.split(".")
    found = importlib.util.find_spec(top)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"{top} is neither installed nor on the PYTHONPATH")
    folder, packages = Path(found.submodule_search_locations[0]), {}
    parts = address.split(".")[:-1]
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        package = packages[name] = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*parts[1:depth]))]
        package.__spec__ = ModuleSpec(name, None, is_package=True)
    alone = {"is_initialized.return_value": False}  # as Ray says where none runs
    packages |= {name: MagicMock(name=name, **alone) for name in absent}
    there = {name: sys.modules[name] for name in packages if name in sys.modules}
    sys.modules.update(packages)
    try:
        return importlib.import_module(address)
    finally:  # what it imported besides stays: torch cannot be imported twice
        for name in packages:
            del sys.modules[name]
        sys.modules.update(there)
