"""The explorers' tables, made without executing chapters.

    python -m tests.make_tables [CHAPTER …]

`python -m tests.execute` writes them, too. Here only the cells that the explorers need
are executed. A still that only rounding tells from the stored one takes its place in
the notebook, so that the two belong together; a chapter with another picture is named,
and must be executed.
"""

import io
import sys
import time
from base64 import b64decode
from pathlib import Path

import nbformat
import numpy as np
from PIL import Image

from tests.execute import NOTEBOOKS, TABLES
from tests.sliders import explorers

sys.path.insert(0, str(NOTEBOOKS))

from course.explorer import VISIBLE
from course.site import tables

ROUNDING = 30
"""A pixel that is no further from another, of 255, has its colour."""


def stills(path: Path) -> list[str]:
    """The pictures of a chapter's explorers, in their order."""
    cells = nbformat.read(path, as_version=4).cells
    data = [o.get("data", {}) for c in cells for o in c.get("outputs", [])]
    shown = [one for one in data if one.get("text/plain", "").startswith("Explorer(")]
    return [one["image/png"] for one in shown]


def same(one: str, other: str) -> bool:
    """Whether a reader sees no difference."""
    files = (io.BytesIO(b64decode(png)) for png in (one, other))
    a, b = (np.array(Image.open(file).convert("RGB")).astype(int) for file in files)
    return a.shape == b.shape and (abs(a - b).max(-1) > ROUNDING).sum() <= VISIBLE


def main(chapters: list[str]) -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        chosen = not chapters or path.stem.split("_")[0] in chapters
        if not (stored := stills(path) if chosen else []):
            continue
        for i, play in enumerate(explorers(path).values()):
            (drawn, _), start = play.still(), time.perf_counter()
            file = TABLES / f"{path.stem}_{i + 1}.json"
            made = tables.write(play, file)
            took, size = time.perf_counter() - start, file.stat().st_size
            stops = [f"{c['name']} {len(c['stops'])}" for c in made["controls"]]
            cost = f"{took:.0f} s, {size // 1000} kB"
            print(f"{file.stem:>20}  {cost}", *stops, flush=True)
            if not same(drawn, stored[i]):
                print("the stored still is another picture: execute the chapter")
            elif made["still"] != tables.still(b64decode(stored[i])):
                text = path.read_text(encoding="utf-8")
                text = text.replace(stored[i].strip(), drawn)
                path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
