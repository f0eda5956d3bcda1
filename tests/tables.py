"""Write the guide's table of methods from the registry: `python -m tests.tables`."""

import re
from pathlib import Path

from refimpl.algorithms import ALGORITHMS, Algorithm

PAGE = Path(__file__).resolve().parents[1] / "notebooks/guide/methods.md"
PLACE = re.compile(
    r"(<!-- made by `python -m tests\.tables` from the registry -->\n).*?"
    r"(<!-- /made -->)",
    re.DOTALL,
)


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


def written(text: str) -> str:
    """`text` of the page with today's table in its place."""
    text_now, count = PLACE.subn(lambda m: m[1] + methods() + m[2], text)
    if count != 1:
        raise ValueError("the page must have one place for the table of methods")
    return text_now


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
