"""Figures are closed, and the browser that pages are opened in."""

import matplotlib.pyplot as plt
import pytest

from tests.tools.browser import chromium


@pytest.fixture(autouse=True)
def _closed_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def browser():
    """Chromium, cut off from every network."""
    pytest.importorskip("selenium.webdriver")
    off = {"offline": True, "latency": 0, "downloadThroughput": 0}
    with chromium(1440, 900) as opened:
        opened.execute_cdp_cmd("Network.enable", {})
        opened.execute_cdp_cmd(
            "Network.emulateNetworkConditions", off | {"uploadThroughput": 0}
        )
        opened.set_script_timeout(60)
        yield opened
