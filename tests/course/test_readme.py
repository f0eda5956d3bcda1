"""README and CONTRIBUTING say what is so: the table of methods, the files."""

import re
from pathlib import Path

import pytest

from refimpl.algorithms import ALGORITHMS
from tests import tables

ROOT = Path(__file__).resolve().parents[2]
TEXTS = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md")
}


def test_the_table_of_methods_is_the_registrys():
    readme = TEXTS["README.md"]
    assert tables.written(readme) == readme, "run `python -m tests.tables`"


@pytest.mark.parametrize("name", TEXTS)
def test_every_file_it_links_to_is_there(name):
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", TEXTS[name])
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_file_of_every_method_fits_on_a_screen_or_two():
    for name in ALGORITHMS:
        lines = (ROOT / f"refimpl/algorithms/{name}.py").read_text("utf-8").count("\n")
        assert lines <= 90, name
