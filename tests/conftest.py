"""Shared by all tests: property tests that repeat exactly, and float64 on request."""

import atexit
import contextlib
import fnmatch
import os
import shutil
import signal
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import settings


def scratch(what: str) -> str:
    """A folder that goes when this process ends."""
    folder = tempfile.mkdtemp(prefix=f"refimpl-{what}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


# Notebooks under test draw into a scratch folder, not over the committed gallery.
if "REFIMPL_FIGURES" not in os.environ:
    os.environ["REFIMPL_FIGURES"] = scratch("figures")

# The committed outputs were made with these seeds; `tools.other_runs` takes others.
for name in ("REFIMPL_SALT", "REFIMPL_OWN_STARTS"):
    os.environ.pop(name, None)

# No test needs a network; without one, asking the hub only costs time.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def separate_cache() -> None:
    """Each worker has a cache of its own, and nobody's home folder is written to.

    Only a pretrained model is the user's, if it has been fetched: it is a download.
    """
    from refimpl.real.pretrained import PACKAGED, fetched, folder

    models = [folder(name).resolve() for name in PACKAGED if fetched(name)]
    os.environ["REFIMPL_CACHE"] = scratch("cache")
    for model in models:
        with contextlib.suppress(OSError):  # where it may not, what needs it is skipped
            link = Path(os.environ["REFIMPL_CACHE"], model.name)
            link.symlink_to(model, target_is_directory=True)


SKIPS = Path(__file__).with_name("skips.txt")


def pytest_terminal_summary(terminalreporter):
    """How many tests were skipped, by reason; CI looks for a reason that is new."""
    known = SKIPS.read_text(encoding="utf-8").splitlines()
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(one.longrepr[2].removeprefix("Skipped: ") for one in skipped)
    for reason, count in reasons.most_common():
        new = not any(fnmatch.fnmatchcase(reason, pattern) for pattern in known)
        of_old = " for a new reason, which is not in tests/skips.txt" if new else ""
        terminalreporter.write_line(f"{count} skipped{of_old}: {reason}")


separate_cache()
if not os.access(Path.home(), os.W_OK):  # Jupyter and matplotlib want one
    os.environ["HOME"] = scratch("home")

settings.register_profile("bounded", max_examples=40, deadline=None, derandomize=True)
settings.load_profile("bounded")
torch.set_num_threads(1)  # tiny tensors: threads would only wait for each other


@pytest.fixture(autouse=True, scope="session")
def heard():
    """`nohup` and `&` make a program deaf to these, and every run that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):  # not on Windows
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="module")
def float64():
    """Inside a module that uses this, `tensor([0.1])` is float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
