"""What a notebook's cells say, as tests read them."""

import json
from pathlib import Path

HIDDEN = "hide-output"
"""The tag of a cell whose output answers the question above it."""
ANSWER = "answer"
"""Where such a cell's metadata has its outputs, so that no viewer shows them."""


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def outputs(cell: dict) -> list[dict]:
    """What a cell shows, also where no viewer shows it."""
    return cell["outputs"] or cell["metadata"].get(ANSWER, [])


def source(cell: dict) -> str:
    return "".join(cell["source"])
