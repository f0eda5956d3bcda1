"""What the core leaves alone: what is built on it, and the process it runs in."""

import ast
import os
import pkgutil
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

import refimpl
from tests.worlds import fixed_noise, own_process, small_run

PACKAGE = Path(refimpl.__file__).parent
ABOVE = "refimpl.cli", "refimpl.pretrained", "refimpl.interop", "experiments", "course"
CORE = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0]
    not in ("pretrained", "interop", "cli.py", "__main__.py")
]


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.stem)
def test_the_core_imports_nothing_that_is_built_on_it(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        named = [a.name for a in getattr(node, "names", ()) if isinstance(a, ast.alias)]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            named = [f"{node.module}.{name}" for name in named]
        assert not [name for name in named if name.startswith(ABOVE)]


@pytest.mark.ci
def test_the_trainer_brings_no_plots_and_nothing_that_is_built_on_it():
    done = own_process("import refimpl, sys; refimpl.train; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    packages = ("matplotlib", "IPython", "ipywidgets", "pandas", "scipy.stats")
    unwanted = (*ABOVE[1:], *packages)
    assert not [n for n in done.stdout.split() if n.startswith(unwanted)]


COMMANDS = """
import contextlib, sys
from refimpl.__main__ import main

for words in ("train --help", "train --algorithm grop"):
    with contextlib.suppress(SystemExit):
        main(words.split())
print("transformers" in sys.modules)
"""


@pytest.mark.ci
def test_help_and_a_mistyped_command_do_not_wait_for_transformers():
    done = own_process(COMMANDS)
    assert done.stdout.split()[-1] == "False", done.stderr


def test_every_part_can_be_reached_from_the_package():
    modules = {module.name for module in pkgutil.iter_modules([str(PACKAGE)])}
    assert modules - {"__main__", "cli"} <= set(refimpl.__all__)
    assert all(hasattr(refimpl, name) for name in refimpl.__all__)


def test_a_run_leaves_the_process_as_it_was(monkeypatch):
    """On one thread, as a small model is fastest."""

    def state():
        return (
            torch.get_num_threads(),
            logging.is_progress_bar_enabled(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
            os.getcwd(),
            dict(os.environ),
        )

    def reward(completions, **_):
        threads.append(torch.get_num_threads())
        return fixed_noise(completions)

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads, usual = [], torch.get_num_threads()
    torch.set_num_threads(3)
    before = state()
    small_run(rollouts=1, reward=reward)
    assert state() == before and threads == [1]
    torch.set_num_threads(usual)
