"""What a notebook's cells say, as tests read them."""

import json
import re
from pathlib import Path

FOLDED = "hide-input"


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def folded(cell: dict) -> bool:
    return FOLDED in cell["metadata"].get("tags", [])


def alternatives(path: Path) -> list[str]:
    """The alternative text of every picture, printed or in the prose; "" for none."""
    found = []
    for cell in cells(path):
        if cell["cell_type"] == "markdown":
            found += re.findall(r"!\[([^\]]*)\]\(", source(cell))
            for picture in re.findall(r"<img [^>]*>", source(cell)):
                found += re.findall(r'alt="([^"]*)"', picture) or [""]
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                found.append(output["metadata"].get("image/png", {}).get("alt", ""))
    return found
