"""Runs of chapter 13 that are kept for readers who have no pretrained model."""

import json
import os
from pathlib import Path
from typing import Any

from experiments import long, store

FILE = Path(__file__).parents[3] / "figures" / "data" / "real_model.json"
HOW = """\
What follows is a stored run. For one of your own, run these two commands in the
repository's folder, and restart the kernel:

.venv/bin/python -m pip install -e ".[real]"
.venv/bin/python -m refimpl fetch smollm2"""


def told(part: str, found: Any = None) -> Any:
    """Return what was found here; None stands for what the stored run found.

    Where committed figures are made (`$REFIMPL_FIGURES`), what was found is stored.
    """
    if found is None:
        print("This is a stored run.")
        return json.loads(FILE.read_text(encoding="utf-8"))[part]
    if "REFIMPL_FIGURES" in os.environ:
        file = Path(os.environ["REFIMPL_FIGURES"], "data", FILE.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        parts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        text = json.dumps(parts | {part: found}, indent=1, ensure_ascii=False)
        file.write_text(text + "\n", encoding="utf-8")
    return found


def answered(path: str | Path, arm: str, seed: int) -> list[list[Any]]:
    """Return a line per held-out problem of a long run: its answers at four moments."""
    runs, _ = store.read(path)
    (run,) = runs.query("arm == @arm and seed == @seed")["run"]
    lines: dict[str, list[Any]] = {}
    for one in long.answers(path)[run]:
        question = one["problem"].partition(": ")[2]
        line = lines.setdefault(question, [question, one["right"]])
        line.append(repr(one["answer"]))
    return [*lines.values()]
