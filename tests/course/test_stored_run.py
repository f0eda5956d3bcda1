"""Chapters 13 and 13b without their model show a stored run."""

import json
import re

from course.real_model import stored
from tests.tools.pages import cells, source
from web.page import NOTEBOOKS


def test_every_part_that_the_chapters_ask_for_is_stored(capsys):
    both = (NOTEBOOKS / f"{stem}.ipynb" for stem in ("13_real_model", "13b_memory"))
    text = "\n".join(source(cell) for path in both for cell in cells(path))
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
