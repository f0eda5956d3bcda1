"""A browser without a window, for what only a browser can say of a page."""

import contextlib
import shutil
import tempfile
import time
from pathlib import Path

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
        try:
            if result := condition():
                return result
        except Exception:
            pass
        time.sleep(0.3)
    raise AssertionError(f"waited {PATIENCE} s in vain for {what}")


class Watched:
    """Waits for what a page should do; what came in vain ends the waiting for good.

    It leaves a picture of the page, its console and the server's words in a folder.
    """

    def __init__(self, browser, log: Path | None = None):
        self.browser, self.log, self.lost = browser, log, ""

    def __call__(self, condition, what: str):
        if self.lost:
            raise AssertionError(f"not tried, because it {self.lost}")
        try:
            return wait(condition, what)
        except AssertionError as error:
            self.lost = str(error)
            raise AssertionError(f"{error}: {self.evidence()}") from None

    def evidence(self) -> str:
        """Where it is kept, and the last of it."""
        folder = Path(tempfile.mkdtemp(prefix="refimpl-page-"))
        self.browser.save_screenshot(str(folder / "page.png"))
        told = {"console": [one["message"] for one in self.browser.get_log("browser")]}
        if self.log:
            told["server"] = self.log.read_text(errors="replace").splitlines()
        for name, lines in told.items():
            (folder / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
        last = "\n".join(f"{name}: {line}" for name in told for line in told[name][-9:])
        page = f"{self.browser.title!r} at {self.browser.current_url}"
        return f"the page was {page}; see {folder}\n{last}"
