"""The explorers' tables, made without executing chapters.

    python -m tests.make_tables [CHAPTER …]

`python -m tests.execute` writes them, too. Here only the cells that the explorers need
are executed, and a chapter whose stored still is another picture is named.
"""

import sys
import time
from base64 import b64decode
from pathlib import Path

import nbformat

from tests.execute import NOTEBOOKS, TABLES
from tests.sliders import explorers

sys.path.insert(0, str(NOTEBOOKS))

from course.site import tables


def stills(path: Path) -> list[str]:
    """The hashes of a chapter's explorers, in their order."""
    cells = nbformat.read(path, as_version=4).cells
    data = [o.get("data", {}) for c in cells for o in c.get("outputs", [])]
    shown = [one for one in data if one.get("text/plain", "").startswith("Explorer(")]
    return [tables.still(b64decode(one["image/png"])) for one in shown]


def main(chapters: list[str]) -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        chosen = not chapters or path.stem.split("_")[0] in chapters
        if not (known := stills(path) if chosen else []):
            continue
        for i, play in enumerate(explorers(path).values()):
            file = TABLES / f"{path.stem}_{i + 1}.json"
            start = time.perf_counter()
            made = tables.write(play, file)
            took, size = time.perf_counter() - start, file.stat().st_size
            stops = [f"{c['name']} {len(c['stops'])}" for c in made["controls"]]
            print(
                f"{file.stem:>20}  {took:.0f} s, {size // 1000} kB", *stops, flush=True
            )
            if made["still"] != known[i]:
                print("the stored notebook has another still")


if __name__ == "__main__":
    main(sys.argv[1:])
