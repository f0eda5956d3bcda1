"""What the tests of pages in a browser share."""

import pytest

from web.browser import MISSING

IN_A_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
]
"""Marks of a module."""


def ask(browser, width: int, script: str):
    """What a script says on a screen so wide, which stays."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1}
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", screen | {"mobile": width < 500}
    )
    return browser.execute_script(script)


def grave(answer: dict) -> list[tuple[str, str]]:
    """What axe found that is serious: the rule, and the first element."""
    assert answer["violations"] or answer["passes"], "axe looked at something"
    found = [x for x in answer["violations"] if x["impact"] in ("serious", "critical")]
    return [(x["id"], x["nodes"][0]["html"]) for x in found]
