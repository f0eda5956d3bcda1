"""README and CONTRIBUTING say what is so: the table of methods, files, the example."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from refimpl.algorithms import ALGORITHMS
from tests import tables
from tests.test_added_method import blocks

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


def test_the_examples_own_test_rejects_a_version_without_the_cut_off(monkeypatch):
    """That it accepts the right one is asked in a copy of the tree."""
    code, names = blocks(), {}
    method = code["refimpl/algorithms/topr.py"]
    wrong = method.replace(".clamp(max=max_ratio)", "")
    assert wrong != method
    module = ModuleType("refimpl.algorithms.topr")
    exec(compile(wrong, "topr.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code["tests/losses/test_topr.py"], "test_topr.py", "exec"), names)
    first, second = (names[name] for name in names if name.startswith("test_"))
    for test in (first, second):
        with pytest.raises(AssertionError):
            test()
