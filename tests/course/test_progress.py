"""What is solved is kept in one file; without a reader nothing is read or written."""

import json
import os
from pathlib import Path

import pytest

from course import kit
from course.kit import solved as kept
from course.kit.exercise import exercises, typed_cells
from tests.tools import execute
from tests.tools.pages import cells, source

RIGHT, TYPED = exercises(), typed_cells()


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Somebody with JupyterLab, whose file this is."""
    monkeypatch.setenv("JPY_SESSION_NAME", "02_ppo.ipynb")
    monkeypatch.setattr(kept, "get_ipython", object)
    monkeypatch.setattr(kept, "FILE", tmp_path / ".progress.json")
    return kept.FILE


def solve(*keys):
    for key in keys:
        if key in RIGHT:
            kit.check(key, RIGHT[key].solution)
        else:
            kit.typed(key, TYPED[key].solution)


def table(monkeypatch):
    """The rows of `kit.progress()`, by chapter."""
    shown = []
    monkeypatch.setattr("course.kit.tables.display", shown.append)
    kit.progress()
    rows = [line.strip("| ").split("|") for line in shown[0].data.splitlines()[2:]]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows}


def test_right_answers_are_kept_and_shown(reader, capsys, monkeypatch):
    kept.say_where()
    kit.check("0.1", ...), kit.check("0.1", "nonsense"), kit.check("0.99", 1)
    kit.typed("02.gae", lambda *_: None)
    assert not reader.exists()
    solve("0.1", "02.gae", "10.2", "2b.1", "0.1", "10.2")
    assert json.loads(reader.read_bytes()) == ["02.gae", "2b.1", "0.1", "10.2"]
    assert [*reader.parent.iterdir()] == [reader]
    assert "You stopped" not in capsys.readouterr().out
    kept.say_where()
    assert capsys.readouterr().out.startswith("You stopped in chapter 10, after 10.2. ")
    solve("02.gae")
    kept.say_where()
    assert "chapter 02, after gae." in capsys.readouterr().out
    rows = table(monkeypatch)
    assert rows["02"] == ["1 / 9", "ppo_loss, 2.1, 2.2, 2.3, 2.4, 2.6, 2.7, 2.8"]
    assert rows["02b"][0].startswith("1 / ") and rows["03"][1] == "all"
    chapters = {one.stem.split("_")[0] for one in execute.NOTEBOOKS.glob("*.ipynb")}
    assert [*rows] == sorted(chapters - {"tour", "10b"})  # these have no exercises


@pytest.mark.parametrize("text", [b"\xff[", b"{}", b"", b"[1, [2]]", None])
def test_a_file_that_cannot_be_read_or_written_disturbs_no_cell(reader, text, capsys):
    reader.write_bytes(text) if text is not None else reader.mkdir()
    kept.say_where()
    assert kept.solved() == [] and capsys.readouterr().out == ""
    solve("0.1")
    assert capsys.readouterr().out == "✓ 0.1  Right.\n"
    assert kept.solved() == ([] if text is None else ["0.1"])


@pytest.mark.parametrize("missing", ["the name", "the shell"])
def test_tests_and_executed_chapters_read_and_write_nothing(
    reader, missing, capsys, monkeypatch
):
    solve("0.1")
    capsys.readouterr()
    if missing == "the name":
        execute.main(["no chapter"])  # takes it away, as tests/apart.py does
        assert "JPY_SESSION_NAME" not in os.environ
    else:
        monkeypatch.setattr(kept, "get_ipython", lambda: None)
    solve("02.gae")
    capsys.readouterr()
    kept.say_where()
    assert capsys.readouterr().out == ""
    assert json.loads(reader.read_bytes()) == ["0.1"]


def test_what_a_chapter_says_first_is_neither_committed_nor_compared():
    """A reader's saved chapters hold the line, and pytest executes them without it."""
    for path in sorted(execute.NOTEBOOKS.glob("*.ipynb")):
        first = next(cell for cell in cells(path) if cell["cell_type"] == "code")
        assert "from course import kit" in source(first) and first["outputs"] == []
        assert "nbval-ignore-output" in first["metadata"]["tags"], path.stem
    ignored = Path(execute.NOTEBOOKS.parent, ".gitignore").read_text().splitlines()
    assert "/notebooks/.progress.json" in ignored
    assert "JPY_SESSION_NAME" not in os.environ, "tests/apart.py takes it away"
