"""The README says what is so: its table of methods, its files, its commands."""

import re
from pathlib import Path

import pytest

from refimpl.algorithms import ALGORITHMS
from tests import tables

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_of_methods_is_the_registrys():
    """After a change: `python -m tests.tables`."""
    assert tables.written(README) == README
    for algorithm in ALGORITHMS.values():
        assert f"[{algorithm.title}](refimpl/algorithms/{algorithm.name}.py)" in README
        assert algorithm.changed.replace("|", r"\|") in README


def test_a_readme_without_a_place_for_the_table_is_refused():
    with pytest.raises(ValueError, match="one place"):
        tables.written("no table here")


def test_every_file_it_links_to_is_there():
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", README)
    assert len(links) > 30
    assert [name for name in links if not (ROOT / name).exists()] == []


def test_the_file_of_every_method_fits_on_a_screen_or_two():
    for name in ALGORITHMS:
        lines = (ROOT / f"refimpl/algorithms/{name}.py").read_text("utf-8").count("\n")
        assert lines <= 90, name
