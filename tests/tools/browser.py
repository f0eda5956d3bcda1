"""A browser without a window, for what only a browser can say of a page."""

import contextlib
import shutil
import tempfile
import time

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = "" if CHROMIUM and DRIVER else "no Chromium: apt-get install chromium-driver"
"""Why nothing can be seen in a browser here."""
PATIENCE = 120  # seconds


@contextlib.contextmanager
def chromium(width: int, height: int):
    """A browser with a window of this size, driven by selenium."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (
        "headless=new no-sandbox disable-gpu disable-dev-shm-usage no-first-run "
        "disable-background-networking disable-component-update disable-sync "
        f"window-size={width},{height}"
    ).split():
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=DRIVER)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options.add_argument(f"--user-data-dir={profile}")
        driver = webdriver.Chrome(options=options, service=service)
        try:
            yield driver
        finally:
            driver.quit()


def wait(condition, what="the page"):
    """Ask until it is true; an exception counts as not yet."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(Exception):
            if result := condition():
                return result
        time.sleep(0.3)
    raise AssertionError(f"waited {PATIENCE} s in vain for {what}")
