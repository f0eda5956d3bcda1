"""In JupyterLab a reader moves a slider of each chapter, and the picture changes.

The cells that one explorer of each chapter needs, and no others, are put together into
one notebook, so that a browser and a kernel start once.
"""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.course.in_browser import IN_A_BROWSER
from tests.tools import sliders
from web.browser import chromium

SEEN = 300
"""Pixels that differ when a reader can see it: more than a number in a title."""
NOTEBOOKS = sorted(sliders.NOTEBOOKS.glob("??_*.ipynb"))

pytestmark = IN_A_BROWSER


def smallest_explorer(path: Path) -> str:
    """The cells that lead to the chapter's explorer with the least to compute."""
    cells = sliders.code(path)
    every = (sliders.needed(cells, i) for i in sliders.shown(cells))
    chosen = min(every, key=lambda chosen: sliders.cost(cells, chosen))
    return "\n\n".join(cells[i] for i in chosen)


@pytest.fixture(scope="module")
def seen():
    """JupyterLab in a browser, beside one notebook with every chapter's cells."""
    pytest.importorskip("selenium.webdriver")
    cells = [smallest_explorer(path) for path in NOTEBOOKS]
    with sliders.lab(cells) as lab, chromium(1400, 1800) as browser:
        yield sliders.opened(browser, *lab)


CELL = """
    const cell = jupyterapp.shell.currentWidget.content.widgets[arguments[0]];
    return cell.node.querySelector(arguments[1]);
"""


PIXELS = """
    const cell = jupyterapp.shell.currentWidget.content.widgets[arguments[0]];
    cell.node.scrollIntoView({block: 'end'});  // JupyterLab shows only what is in sight
    const image = cell.node.querySelector('img.widget-image');
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    canvas.getContext('2d').drawImage(image, 0, 0);
    return canvas.toDataURL('image/png').split(',')[1];
"""


RECTANGLES = """
    const cell = jupyterapp.shell.currentWidget.content.widgets[arguments[0]];
    const image = cell.node.querySelector('img.widget-image');
    const play = image.parentElement.parentElement;  // the strip is under the image
    const column = play.firstElementChild, page = play.parentElement;
    const place = one => one.getBoundingClientRect().toJSON();
    return {image: place(image), column: place(column), page: place(page)};
"""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_moving_a_slider_changes_the_picture(path, seen):
    index, page = NOTEBOOKS.index(path), seen.browser
    page.execute_script(sliders.RUN, index)

    def picture() -> np.ndarray:
        png = base64.b64decode(page.execute_script(PIXELS, index))
        return np.array(Image.open(io.BytesIO(png)).convert("RGB"))

    before = seen(lambda: [picture()], "the explorer's picture")[0]
    find = (CELL, index, ".widget-slider .noUi-handle")
    handle = seen(lambda: page.execute_script(*find), "a slider")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", handle)
    handle.send_keys("\ue014" * 5)  # arrow right
    seen(lambda: (picture() != before).any(-1).sum() > SEEN, "the picture to change")
    play = page.execute_script(RECTANGLES, index)
    column, image = play["column"], play["image"]
    assert image["left"] >= column["right"], "beside the controls"
    assert image["right"] <= play["page"]["right"] + 1, "not cut off"


def test_sapos_explorer_is_whole_on_a_small_screen(seen):
    """Task, sliders and picture together: what is beside them has 300 pixels."""
    index = next(i for i, path in enumerate(NOTEBOOKS) if path.stem == "10_sapo")
    play = seen.browser.execute_script(RECTANGLES, index)
    heights = [play[one]["bottom"] - play[one]["top"] for one in ("column", "image")]
    assert 300 < heights[1] <= 420 and heights[0] <= 440
