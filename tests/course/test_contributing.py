"""The worked example of CONTRIBUTING.md works as it stands there."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from course import plots
from refimpl.algorithms import ALGORITHMS
from refimpl.curves import curve
from refimpl.trainer import TrainConfig, train

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILE, TEST, FIGURE = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.fixture
def topr(monkeypatch):
    """The example's file as a module, and the method in the registry."""
    module = ModuleType("refimpl.algorithms.topr")
    exec(compile(FILE, "topr.py", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(ALGORITHMS, "topr", module.TOPR)
    return module


def test_the_examples_own_test_passes(topr):
    names = {}
    exec(compile(TEST, "test_topr.py", "exec"), names)
    tests = [f for name, f in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_the_examples_own_test_can_fail(topr, monkeypatch):
    """A version that forgets the cut-off is rejected."""
    wrong = FILE.replace(".clamp(max=max_ratio)", "")
    assert wrong != FILE
    exec(compile(wrong, "topr.py", "exec"), topr.__dict__)
    names = {}
    exec(compile(TEST, "test_topr.py", "exec"), names)
    with pytest.raises(AssertionError):
        names[
            "test_good_tokens_learn_at_full_weight_and_bad_ones_by_the_ratio_up_to_1"
        ]()


def test_the_example_trains(topr):
    config = TrainConfig(
        rollouts=2, prompts_per_rollout=4, group_size=4, eval_problems=8
    )
    history = train("topr", config=config, progress=False)
    assert max(history["ratio/max_deviation"]) > 1e-4


def test_the_examples_figure_shows_the_taper(topr):
    names = {}
    exec(compile(FIGURE, "figure", "exec"), names)
    bad = curve("topr", -1)
    assert bad.coefficient[bad.ratio > 1].max() == 1 and bad.coefficient.min() < 0.05
    plots.plt.close("all")


def test_every_file_it_names_is_there():
    links = re.findall(r"\]\(([^)#:]+)[^):]*\)", TEXT)
    assert len(links) > 10
    assert [name for name in links if not (ROOT / name).exists()] == []
