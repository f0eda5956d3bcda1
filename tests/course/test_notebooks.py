"""The committed notebooks were executed, in order, and promise what nbval can check."""

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from course.kit.exercise import RIGHT, judge, typed_cells
from course.real_model import stored
from tests.tools.execute import METADATA
from tests.tools.pages import ANSWER, HIDDEN, outputs, source
from tests.tools.pages import cells as load

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TAUGHT = [
    path
    for path in NOTEBOOKS
    if "## Remember" in path.read_text("utf-8") and path.stem != "10b_evidence"
]
"""Chapters in the anatomy of the core path; the appendix asks for no code."""

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(path: Path) -> list[dict]:
    return [c for c in load(path) if c["cell_type"] == "code" and source(c).strip()]


def ignored(cell: dict) -> bool:
    return "nbval-ignore-output" in cell["metadata"].get("tags", [])


def printed(cell: dict) -> str:
    """What a cell printed, and the tables that it showed."""
    shown = outputs(cell)
    tables = [o.get("data", {}).get("text/markdown", "") for o in shown]
    texts = [o.get("text", table) for o, table in zip(shown, tables)]
    return "".join("".join(text) for text in texts)


@each
def test_every_cell_was_run_in_order_from_a_fresh_kernel_and_none_failed(path):
    """nbval passes a cell that was never run; this does not. (With these metadata
    JupyterLab has nothing to save when the chapter is opened.)"""
    cells = code(path)
    counts = [cell["execution_count"] for cell in cells]
    assert counts == list(range(1, len(counts) + 1))
    assert json.loads(path.read_text(encoding="utf-8"))["metadata"] == METADATA
    assert "error" not in [o["output_type"] for cell in cells for o in outputs(cell)]
    shown = json.dumps([outputs(cell) for cell in cells])
    assert "%|" not in shown  # a bar
    assert "stderr" not in shown, "a warning, with a path of this machine"


@each
def test_no_answer_stands_under_its_question(path):
    """A viewer that folds nothing, as GitHub's, would show it there."""
    for cell in code(path):
        hidden = HIDDEN in cell["metadata"].get("tags", [])
        assert not (hidden and cell["outputs"]), source(cell)[:60]
        assert hidden == bool(cell["metadata"].get(ANSWER)), source(cell)[:60]
        assert "outputs_hidden" not in cell["metadata"].get("jupyter", {})


@each
def test_a_claim_stands_with_what_is_not_compared(path):
    """Numbers of a run differ between machines; what they show is asserted."""
    cells = code(path)
    for cell, after in zip(cells, [*cells[1:], cells[-1]]):
        timed = "perf_counter" in source(cell)  # a speed is shown, never asserted
        if ignored(cell) and printed(cell) and not timed:
            assert "assert" in source(cell) + source(after), source(cell)[:60]
        # What is compared as text must not be a verdict on a run, nor rounding noise:
        # 2e-16 on one processor is 3e-16 on the next.
        verdict = re.search(r"\b(True|False)\b", printed(cell))
        noise = re.search(r"\d(?:\.\d+)?e-(?:0[89]|[1-9]\d)\b", printed(cell))
        assert not (verdict if ignored(cell) else noise), source(cell)[:60]
    assert "nbval-skip" not in json.dumps([c["metadata"] for c in cells])


@pytest.mark.parametrize("path", TAUGHT, ids=lambda path: path.stem)
def test_a_typed_cell_is_empty_and_its_fold_holds_a_right_solution(path):
    """`name = kit.typed("03.name", name)`; the next cell has the solution in a fold."""
    known, cells = typed_cells(), load(path)
    own = {key for key in known if key.split(".")[0] == path.stem.split("_")[0]}
    found = set()
    for cell, after in pairwise(cells):
        pattern = r'^(\w+) = kit\.typed\("([\w.]+)", (\w+)\)'
        call = re.search(pattern, source(cell), re.M)
        if cell["cell_type"] != "code" or not call:
            continue
        name, key, attempt = call.groups()
        assert name == attempt and key.partition(".")[2] == name
        assert "Nothing typed yet" in printed(cell)
        fold = r"<details><summary>Solution</summary>\s*```python\n(.*?)```"
        shown = re.search(fold, source(after), re.S)
        assert shown, f"no solution below {key}"
        space = {}
        exec("import math\nimport torch\n" + shown[1], space)
        assert judge(known[key], space[name])[0] == RIGHT, key
        found.add(key)
    assert found == own and (own or path.stem[:2] in ("00", "13"))


def test_every_part_that_the_chapters_ask_for_is_stored(capsys):
    """Chapters 13 and 13b without their model show it."""
    both = (path for path in NOTEBOOKS if path.stem.startswith("13"))
    text = "\n".join(source(cell) for path in both for cell in load(path))
    asked = re.findall(r'stored\.told\("([^"]+)"', text)
    known = json.loads(stored.FILE.read_text(encoding="utf-8"))
    assert len(asked) == 6 and set(asked) == set(known)
    assert [stored.told(part) for part in asked] == [known[part] for part in asked]
    assert capsys.readouterr().out == "This is a stored run.\n" * 6


def test_what_was_found_is_stored_next_to_the_rest(tmp_path, monkeypatch):
    monkeypatch.setenv("REFIMPL_FIGURES", str(tmp_path))
    assert (stored.told("one", [0.5]), stored.told("two", 2)) == ([0.5], 2)
    found = json.loads((tmp_path / "data/real_model.json").read_text("utf-8"))
    assert found == {"one": [0.5], "two": 2}
