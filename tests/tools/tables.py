"""Write the guide's tables, from the registry and from what was measured, and how
stored runs ended, for the strips under the explorers:

python -m tests.tools.tables
"""

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "notebooks"))

from course.kit import claims
from experiments import bench
from experiments.gpu import check
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.interop import logs, symptoms

ROOT = Path(__file__).resolve().parents[2]


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
    return bench.table(json.loads((ROOT / file).read_text("utf-8")))


def on_gpu(part: str) -> str:
    """What `gpu-check` has a column for, or all figures of another part, by row."""
    rows = json.loads((ROOT / GPU).read_text("utf-8"))[part]
    columns = check.COLUMNS if part == "gpu-check" else next(iter(rows.values()))
    table = [[name, *(figure(x.get(c)) for c in columns)] for name, x in rows.items()]
    heads = ["", *(check.COLUMNS.get(c, c) for c in columns)]
    how = {"disable_numparse": True, "colalign": ("left", *["right"] * len(columns))}
    return tabulate(table, heads, "github", **how) + "\n"


def figure(x: float | None) -> str:
    if x is None:
        return "–"
    return f"{float(f'{x:.3g}'):,.0f}" if x >= 100 else f"{x:.3g}"


def answer(file: str) -> str:
    """What `read-log` says of a log."""
    log = logs.read(ROOT / file)._replace(path=Path(file).name)
    return f"\n```text\n{symptoms.report(log)}\n```\n\n"


GPU = "figures/data/gpu.json"
LOG = "tests/evidence/logs/hack.csv"
MEASURED = "figures/data/bench.json", "figures/data/bench_smollm2.json"
TABLES = "gpu-check", "SmolLM2, seconds per rollout"
MADE: dict[str, dict[str, Callable[[], str]]] = {
    "methods": {"the registry": methods},
    "measured": {file: partial(speeds, file) for file in MEASURED},
    "read_log": {LOG: partial(answer, LOG)},
    "machines": {f"{part} in {GPU}": partial(on_gpu, part) for part in TABLES},
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
        table = made().replace("\\", r"\\")
        now, count = place.subn(rf"\1{table}\2", now)
        if count != 1:
            raise ValueError(f"{page}.md must have one place for what is from {source}")
    return path, text, now


if __name__ == "__main__":
    for page in MADE:
        path, _, now = written(page)
        path.write_text(now, encoding="utf-8")
    ENDED.write_text(ended(), encoding="utf-8")
