"""What a notebook's cells say, as tests read them."""

import json
from pathlib import Path


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(cell: dict) -> str:
    return "".join(cell["source"])
