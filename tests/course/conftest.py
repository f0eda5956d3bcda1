"""Chapters under test refuse an explorer of which a control moves nothing.

It is set here and not in the chapters: a reader's own gate may well move nothing.
"""

import os

import matplotlib.pyplot as plt
import pytest

os.environ.setdefault("REFIMPL_CHECK_SLIDERS", "1")


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")
