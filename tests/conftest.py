"""Shared by all tests: property tests that repeat exactly, and float64 on request."""

import fnmatch
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from tests import apart  # noqa: F401  where pytest has not taken it already

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


settings.register_profile("bounded", max_examples=40, deadline=None, derandomize=True)
settings.load_profile("bounded")


@pytest.fixture(autouse=True, scope="session")
def process():
    """One thread: for tiny tensors more would wait for each other. And whoever tests
    may be deaf, by `nohup` or `&`, and with it every run that it starts.
    """
    import torch  # here, as the process that hands out the tests needs none

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):  # not on Windows
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="module")
def float64():
    """Inside a module that uses this, `tensor([0.1])` is float64."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
