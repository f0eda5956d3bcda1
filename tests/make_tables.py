"""The explorers' tables, without executing chapters: `python -m tests.make_tables [10 …]`.

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
        if (chapters and path.stem.split("_")[0] not in chapters) or not stills(path):
            continue
        for i, (play, known) in enumerate(
            zip(explorers(path).values(), stills(path)), 1
        ):
            file = TABLES / f"{path.stem}_{i}.json"
            start = time.perf_counter()
            made = tables.write(play, file)
            took = (
                f"{time.perf_counter() - start:.0f} s, {file.stat().st_size // 1000} kB"
            )
            stops = ", ".join(
                f"{c['name']} {len(c['stops'])}" for c in made["controls"]
            )
            other = (
                "" if made["still"] == known else "  THE NOTEBOOK'S STILL IS ANOTHER"
            )
            print(f"{file.stem:>20}  {took}  {stops}{other}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
