"""What is tested stays apart from the folders of this clone and of whoever runs it.

pytest takes it for a plugin (`pyproject.toml`), whatever it is asked to run.
"""

import atexit
import contextlib
import os
import shutil
import tempfile
from pathlib import Path


def scratch(what: str) -> str:
    """A folder that goes when this process ends."""
    folder = tempfile.mkdtemp(prefix=f"refimpl-{what}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


# Notebooks under test draw into a scratch folder, not over the committed gallery.
if "REFIMPL_FIGURES" not in os.environ:
    os.environ["REFIMPL_FIGURES"] = scratch("figures")

# The committed outputs were made with these seeds; `guide/machines.md` takes others.
for name in ("REFIMPL_SALT", "REFIMPL_OWN_STARTS"):
    os.environ.pop(name, None)

# A reader's progress is kept by kernels that bear this name, and no test is a reader.
os.environ.pop("JPY_SESSION_NAME", None)

# No test needs a network; without one, asking the hub only costs time.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def separate_cache() -> None:
    """Each worker has a cache of its own, and nobody's home folder is written to.

    Only a pretrained model is the user's, if it has been fetched: it is a download, and
    its folder ends in a version. The package itself would take seconds to import.
    """
    usual = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "refimpl")
    cache = Path(os.environ.get("REFIMPL_CACHE") or usual)
    os.environ["REFIMPL_CACHE"] = scratch("cache")
    for file in cache.glob("*-*.*/config.json"):
        with contextlib.suppress(OSError):  # where it may not, what needs it is skipped
            link = Path(os.environ["REFIMPL_CACHE"], file.parent.name)
            link.symlink_to(file.parent.resolve(), target_is_directory=True)


def pytest_collection_modifyitems(items) -> None:
    """nbval also compares outputs that are kept where no viewer shows them."""
    for item in items:
        if cell := getattr(item, "cell", None):
            cell.outputs = cell.outputs or cell.metadata.get("answer", [])


separate_cache()
if not os.access(Path.home(), os.W_OK):  # Jupyter and matplotlib want one
    os.environ["HOME"] = scratch("home")
