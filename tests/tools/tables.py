"""Write the guide's tables, from the registry and from what was measured, and how
stored runs ended, for the strips under the explorers:

python -m tests.tools.tables
"""

import json
import re
import sys
from functools import partial
from pathlib import Path

from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.lab import bench

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "notebooks"))

from course.kit import claims  # noqa: E402


def row(algorithm: Algorithm) -> str:
    parent = ALGORITHMS[algorithm.parent].title if algorithm.parent else ""
    cells = (
        f"[{algorithm.title}](../../refimpl/algorithms/{algorithm.name}.py)",
        parent,
        algorithm.changed.replace("|", r"\|"),
        algorithm.paper,
    )
    return f"| {' | '.join(cells)} |"


def methods() -> str:
    head = "| method | changes | by | paper |\n|---|---|---|---|\n"
    return head + "\n".join(map(row, ALGORITHMS.values())) + "\n"


def speeds(file: str) -> str:
    path = ROOT / file
    if not path.exists():
        return "Not measured yet.\n"
    return bench.table(json.loads(path.read_text("utf-8")))


MEASURED = "figures/data/bench.json", "figures/data/bench_smollm2.json"
MADE = {
    "methods": {"the registry": methods},
    "measured": {file: partial(speeds, file) for file in MEASURED},
}
"""Of a page of the guide: what each made table is from."""


ENDED = ROOT / "figures/data/ended.csv"


def ended() -> str:
    """Held-out accuracy after 30 rollouts from the first five starts, a line a cell."""
    table = claims.table().query("rollouts == 30").dropna(subset="accuracy")
    changed = table["changed"].map(lambda one: json.dumps(dict(one), sort_keys=True))
    cell = ["arm", "rate", "updates", "world", "changed"]
    accuracy = table.assign(changed=changed).groupby(cell)["accuracy"]
    found = accuracy.agg(runs="size", median="median", least="min", most="max")
    return found.to_csv(float_format="%.4g", lineterminator="\n")


def written(page: str) -> tuple[Path, str, str]:
    """A page's path, its text, and the text with today's tables in their places."""
    path = ROOT / f"notebooks/guide/{page}.md"
    text = now = path.read_text(encoding="utf-8")
    for source, made in MADE[page].items():
        mark = f"<!-- made by `python -m tests.tools.tables` from {source} -->\n"
        place = re.compile(f"({re.escape(mark)}).*?(<!-- /made -->)", re.DOTALL)
        table = made()
        now, count = place.subn(lambda m, table=table: m[1] + table + m[2], now)
        if count != 1:
            raise ValueError(f"{page}.md must have one place for what is from {source}")
    return path, text, now


if __name__ == "__main__":
    for page in MADE:
        path, _, now = written(page)
        path.write_text(now, encoding="utf-8")
    ENDED.write_text(ended(), encoding="utf-8")
