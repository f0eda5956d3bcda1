"""In JupyterLab a reader moves a slider of each chapter, and the picture changes.

The cells that one explorer of each chapter needs, and no others, are put together into
one notebook, so that a browser and a kernel start once.
"""

import base64
import io
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import numpy as np
import pytest
from PIL import Image

from course.explorer import VISIBLE
from tests import sliders

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
NOTEBOOKS = sorted(sliders.NOTEBOOKS.glob("??_*.ipynb"))
PATIENCE = 120  # seconds

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="no Chromium with chromedriver: apt-get install chromium-driver",
    ),
]


def smallest_explorer(path: Path) -> str:
    """The cells that lead to the chapter's explorer with the least to compute."""
    cells = sliders.code(path)
    every = (sliders.needed(cells, i) for i in sliders.shown(cells))
    chosen = min(every, key=lambda chosen: sliders.cost(cells, chosen))
    return "\n\n".join(cells[i] for i in chosen)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab beside one notebook with every chapter's cells; yields its address."""
    root = tmp_path_factory.mktemp("lab")
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    for path in NOTEBOOKS:
        notebook.cells.append(nbformat.v4.new_code_cell(smallest_explorer(path)))
    nbformat.write(notebook, root / "sliders.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = (
        "--no-browser --allow-root --ServerApp.ip=127.0.0.1 --IdentityProvider.token= "
        "--ServerApp.password= --LabApp.expose_app_in_browser=True"
    ).split()
    options += [f"--ServerApp.port={port}", f"--ServerApp.root_dir={root}"]
    path = {"PYTHONPATH": str(sliders.NOTEBOOKS)}  # where `course` is
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options],
        env=os.environ | path | {"REFIMPL_FIGURES": str(root / "figures")},
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


@pytest.fixture(scope="module")
def page(lab, browser):
    browser.get(f"{lab}/lab/tree/sliders.ipynb?reset")
    ready = "return !!window.jupyterapp?.shell.currentWidget?.sessionContext?.session"
    wait(lambda: browser.execute_script(ready), "a kernel")
    return browser


RUN = """
    const notebook = jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = arguments[0];
    notebook.deselectAll();
    jupyterapp.commands.execute('notebook:run-cell');
"""  # its promise is not returned: the driver would wait for the cell to end
CELL = """
    const cell = jupyterapp.shell.currentWidget.content.widgets[arguments[0]];
    return cell.node.querySelector(arguments[1]);
"""


PIXELS = """
    const image = jupyterapp.shell.currentWidget.content.widgets[arguments[0]]
        .node.querySelector('img.widget-image');
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    canvas.getContext('2d').drawImage(image, 0, 0);
    return canvas.toDataURL('image/png').split(',')[1];
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_moving_a_slider_changes_the_picture(path, page):
    index = NOTEBOOKS.index(path)
    page.execute_script(RUN, index)

    def picture() -> np.ndarray:
        png = base64.b64decode(page.execute_script(PIXELS, index))
        return np.array(Image.open(io.BytesIO(png)).convert("RGB"))

    before = wait(lambda: [picture()], "the explorer's picture")[0]
    find = (CELL, index, ".widget-slider .noUi-handle")
    handle = wait(lambda: page.execute_script(*find), "a slider")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", handle)
    handle.send_keys("\ue014" * 5)  # arrow right
    wait(lambda: (picture() != before).any(-1).sum() > VISIBLE, "the picture to change")
