"""What a notebook's cells say, as tests read them."""

import json
from pathlib import Path

FOLDED = "hide-input"


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def folded(cell: dict) -> bool:
    return FOLDED in cell["metadata"].get("tags", [])
