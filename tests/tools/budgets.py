"""How many lines of code each room has, beside the budgets in CONTRIBUTING.md:

python -m tests.tools.budgets           # prints both
python -m tests.tools.budgets --write   # writes today's figures into the table
"""

import ast
import io
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
TOPS = "refimpl", "notebooks", "tests"
ROW = re.compile(r"^\| `([\w/]+)` \| ([\d,]+) \|$", re.MULTILINE)
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER}
LAYOUT |= {tokenize.INDENT, tokenize.DEDENT}


def budgets(text: str) -> dict[str, int]:
    """The table of a text of CONTRIBUTING: lines of code by room."""
    return {room: int(lines.replace(",", "")) for room, lines in ROW.findall(text)}


def code(source: str) -> int:
    """The lines that hold code: no docstring, comment, import or blank line."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        text = text and isinstance(node.value.value, str)
        if text or isinstance(node, ast.Import | ast.ImportFrom):
            lines -= {*range(node.lineno, node.end_lineno + 1)}
    filled = enumerate(source.split("\n"), 1)
    return len(lines & {number for number, line in filled if line.strip()})


def room_of(path: Path, rooms) -> str | None:
    """The innermost room that a file lies in."""
    above = [folder.as_posix() for folder in path.relative_to(ROOT).parents]
    return next((folder for folder in above if folder in rooms), None)


def files() -> list[Path]:
    return [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]


def measured(rooms) -> dict[str, int]:
    """Today's lines of code by room."""
    found = dict.fromkeys(rooms, 0)
    for path in files():
        if room := room_of(path, rooms):
            found[room] += code(path.read_text("utf-8"))
    return found


def written(text: str, found: dict[str, int]) -> str:
    """The page with these figures in its table."""
    return ROW.sub(lambda row: f"| `{row[1]}` | {found[row[1]]:,} |", text)


if __name__ == "__main__":
    page = PAGE.read_text("utf-8")
    limits = budgets(page)
    found = measured(limits)
    for room, limit in limits.items():
        print(f"{room:24} {found[room]:7,} of {limit:7,}")
    if "--write" in sys.argv[1:]:
        PAGE.write_text(written(page, found), "utf-8")
