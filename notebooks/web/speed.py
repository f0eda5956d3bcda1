"""How fast a page of the web edition stands, and what the whole weighs.

    python -m web.speed [FOLDER] [PAGE]

From `file://` in Chromium without a window: the first paint, when the page answers,
and when its first explorer does; medians of five visits, each in a browser of its own,
in milliseconds. The bars of chapter 10, on a quiet machine, are 1000 to the paint and
2000 to the explorer. Then the weight of the folder and its ten heaviest files.
"""

import statistics
import sys
from pathlib import Path

from web.browser import chromium, wait
from web.page import ROOT

SITE = ROOT / "site"
VISITS = 5
WATCH = """
    const look = () => document.querySelector('.explorer input, .explorer select')
        ? window.answers = performance.now() : requestAnimationFrame(look);
    look();
"""  # runs before the page's own scripts
TIMES = """
    const paint = performance.getEntriesByName('first-contentful-paint')[0];
    const page = performance.getEntriesByType('navigation')[0];
    return paint && page.loadEventEnd && (window.answers || !arguments[0]) &&
        [paint.startTime, page.domInteractive, window.answers ?? 0];
"""


def visit(page: Path) -> list[float]:
    with chromium(1440, 900) as browser:
        before = {"source": WATCH}
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", before)
        browser.get(page.as_uri())
        explorers = browser.find_elements("css selector", ".explorer")
        return wait(lambda: browser.execute_script(TIMES, len(explorers)))


def main(folder: Path = SITE, name: str = "10_sapo.html") -> None:
    times = zip(*(visit(folder / name) for _ in range(VISITS)))
    paint, ready, explorer = (statistics.median(one) for one in times)
    print(f"{name}: paint {paint:.0f} ms, page {ready:.0f}, explorer {explorer:.0f}")
    sizes = {one: one.stat().st_size for one in folder.rglob("*") if one.is_file()}
    print(f"{len(sizes)} files, {sum(sizes.values()) / 1e6:.1f} MB; the heaviest:")
    for one in sorted(sizes, key=sizes.get, reverse=True)[:10]:
        print(f"{sizes[one] / 1e3:8.0f} kB  {one.relative_to(folder)}")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(*(Path(one).resolve() for one in given[:1]), *given[1:])
