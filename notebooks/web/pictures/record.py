"""SAPO's gates dragged on the page, as an animated picture for the README.

    python -m web.pictures.record

Builds the site in a temporary folder, moves the sliders of SAPO's explorer in Chromium,
and writes `figures/dragged.gif`.
"""

import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from selenium.webdriver.common.by import By

from web.browser import chromium, wait
from web.build import build
from web.page import ROOT

FILE = ROOT / "figures" / "dragged.gif"
TABLES = FILE.parent / "explorers" / "10_sapo_1.json"
WIDTH, HEIGHT, WIDE = 1440, 1000, 700
MILLISECONDS, LAST = 90, 1500
EXPLORER = "window.explorers['10_sapo_1']"


def positions(stops: dict[str, list[str]]) -> Iterator[dict[str, int]]:
    """Index by control: a gate opens and closes, one side is moved, updates go by."""
    at = {"tau_pos": stops["tau_pos"].index("8.8"), "gate": 0, "k": 16}
    at["tau_neg"] = stops["tau_neg"].index("8.8")
    low = stops["tau_pos"].index("1")
    step = max(1, (at["tau_pos"] - low) // 6)
    way = range(at["tau_pos"], low - 1, -step)
    for both in (*way, *reversed(way)):
        yield at | {"tau_pos": both, "tau_neg": both}
    for k in (*range(15, -1, -3), *range(0, 17, 2)):
        yield at | {"k": k}
    for one in (*way, *reversed(way)):
        yield at | {"tau_neg": one}


def main() -> None:
    frames = []
    with tempfile.TemporaryDirectory() as folder, chromium(WIDTH, HEIGHT) as page:
        page.get(build(Path(folder) / "site", say=lambda _: None).as_uri())
        wait(lambda: page.execute_script(f"return !!{EXPLORER}"), "the player")
        figure = page.find_element(By.CSS_SELECTOR, "figure.explorer")
        told = json.loads(TABLES.read_text(encoding="utf-8"))
        stops = {one["name"]: one["labels"] for one in told["controls"]}
        for values in positions(stops):
            page.execute_script(f"{EXPLORER}.set(arguments[0])", values)
            shot = Image.open(io.BytesIO(figure.screenshot_as_png)).convert("RGB")
            size = WIDE, round(shot.height * WIDE / shot.width)
            small = shot.resize(size, Image.Resampling.LANCZOS)
            frames.append(small.quantize(64, dither=0))
    times = [MILLISECONDS] * (len(frames) - 1) + [LAST]
    first, *others = frames
    first.save(FILE, save_all=True, append_images=others, duration=times, loop=0)
    print(f"{FILE}: {len(frames)} pictures, {FILE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
