"""The start page's run, trained under both rewards, as an animated picture.

    python -m web.pictures.record

Builds the site in a temporary folder, drags the run in Chromium, and writes
`figures/two_rewards.gif` for the README.
"""

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from selenium.webdriver.common.by import By

from web.browser import chromium, wait
from web.build import build
from web.page import ROOT

FILE = ROOT / "figures" / "two_rewards.gif"
WIDTH, HEIGHT, WIDE = 900, 1000, 760
MILLISECONDS, FIRST, LAST = 200, 1500, 4000
DRAG = """
    const [pay, round] = arguments;
    const slider = document.querySelector('.door [type=range]');
    document.querySelector(`.door [value=${pay}]`).checked = true;
    slider.value = round;
    slider.dispatchEvent(new Event('input'));
    return Number(slider.max);
"""


def frames(page) -> Iterator[tuple[Image.Image, int]]:
    """Pictures, and for how many milliseconds each is shown."""
    figure = page.find_element(By.CSS_SELECTOR, ".door")
    for pay in ("steps", "right"):
        last = page.execute_script(DRAG, pay, 0)
        for round_ in range(last + 1):
            page.execute_script(DRAG, pay, round_)
            shot = Image.open(io.BytesIO(figure.screenshot_as_png)).convert("RGB")
            size = WIDE, round(shot.height * WIDE / shot.width)
            small = shot.resize(size, Image.Resampling.LANCZOS)
            time = {0: FIRST, last: LAST}.get(round_, MILLISECONDS)
            yield small.quantize(64, dither=0), time


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chromium(WIDTH, HEIGHT) as page:
        page.get(build(Path(folder) / "site", say=lambda _: None).as_uri())
        wait(lambda: page.execute_script(DRAG, "steps", 0), "the run")
        (first, *others), times = zip(*frames(page))
    first.save(FILE, save_all=True, append_images=others, duration=times, loop=0)
    print(f"{FILE}: {len(times)} pictures, {FILE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
