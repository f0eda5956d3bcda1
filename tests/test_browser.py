"""A reader opens a chapter in JupyterLab, moves a slider, and the picture changes."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
DRIVER = shutil.which("chromedriver")
NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
PATIENCE = 120  # seconds

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="no Chromium with chromedriver here; on Debian and Ubuntu: "
    "apt-get install chromium chromium-driver",
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab on a copy of the notebooks; yields its address."""
    root = tmp_path_factory.mktemp("lab")
    shutil.copytree(NOTEBOOKS, root / "notebooks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
            *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"),
            *("--IdentityProvider.token=", "--ServerApp.password="),
            f"--ServerApp.root_dir={root}",
            "--LabApp.expose_app_in_browser=True",
        ],
        env={**os.environ, "REFIMPL_FIGURES": str(root / "figures")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        wait(lambda: urllib.request.urlopen(f"{address}/api").status == 200)
        yield address
    finally:
        server.terminate()
        server.wait(timeout=30)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for switch in (
        "headless=new no-sandbox disable-gpu disable-dev-shm-usage no-first-run "
        "disable-background-networking disable-component-update disable-sync "
        "window-size=1400,1800"
    ).split():
        options.add_argument(f"--{switch}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    driver = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=DRIVER)
    )
    yield driver
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


def cells_to_run(notebook: Path, needle: str) -> list[int]:
    """The imports, and the cell that holds the widget."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = [i for i, cell in enumerate(cells) if cell["cell_type"] == "code"]
    holds = [i for i in code if needle in "".join(cells[i]["source"])]
    assert holds, f"{notebook.name} has no cell with {needle!r}"
    return [code[0], holds[0]]


def test_moving_a_slider_changes_the_picture(lab, browser):
    name = "02_ppo.ipynb"
    browser.get(f"{lab}/lab/tree/notebooks/{name}?reset")
    ready = "return !!window.jupyterapp?.shell.currentWidget?.sessionContext?.session"
    wait(lambda: browser.execute_script(ready), "a kernel")
    for index in cells_to_run(NOTEBOOKS / name, "clip_explorer("):
        browser.execute_script(
            "const notebook = jupyterapp.shell.currentWidget.content;"
            "notebook.activeCellIndex = arguments[0]; notebook.deselectAll();"
            "return jupyterapp.commands.execute('notebook:run-cell')",
            index,
        )
    picture = "return document.querySelector('img.widget-image')?.src"
    before = wait(lambda: browser.execute_script(picture), "the widget's picture")
    handle = wait(
        lambda: browser.find_element("css selector", ".widget-slider .noUi-handle"),
        "a slider",
    )
    handle.send_keys("\ue014" * 5)  # arrow right
    wait(
        lambda: browser.execute_script(picture) not in (None, before),
        "the picture to change",
    )
