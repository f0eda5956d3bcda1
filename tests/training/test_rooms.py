"""What the core leaves alone: the rooms beside it, and the process that it runs in."""

import ast
import importlib
import json
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import refimpl
from refimpl.shell.flags import METHODS
from tests.worlds import own_process

PACKAGE = Path(refimpl.__file__).parent
ROOT = PACKAGE.parent
FILES = [
    path
    for folder in (
        PACKAGE,
        *(
            PACKAGE / room
            for room in ("algorithms", "checks", "routing", "tasks", "keep")
        ),
    )
    for path in sorted(folder.glob("*.py"))
    if path.name != "__main__.py"
]
ROOMS = "refimpl.shell", "refimpl.real", "refimpl.interop", "refimpl.lab"
KEEP, DOOR = "refimpl.keep", "refimpl.keep.ending"


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {name_of(path): ast.parse(path.read_text("utf-8")) for path in FILES}


def imported(tree: ast.AST) -> set[str]:
    """The modules of refimpl that are imported anywhere in it, in functions too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            submodules = {n for n in inside if n in MODULES or n.startswith(ROOMS)}
            found |= submodules or {node.module}
    return {name for name in found if name.split(".")[0] == "refimpl"}


GRAPH = {name: imported(tree) - {name} for name, tree in MODULES.items()}


def test_the_core_imports_no_other_room():
    for name, others in GRAPH.items():
        assert not {other for other in others if other.startswith(ROOMS)}, name
    ways = {"import_module", "__import__", "exec"}
    for name in MODULES.keys() - {"refimpl"}:  # the door imports what is asked for
        tree = MODULES[name]
        called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        words = {getattr(f, "attr", getattr(f, "id", "")) for f in called}
        assert not words & ways, name


def test_only_the_page_opens_the_room_of_how_a_run_is_kept_by_one_door():
    for name, others in GRAPH.items():
        if not name.startswith(KEEP):
            opened = {DOOR} if name == "refimpl.train" else set()
            assert {other for other in others if other.startswith(KEEP)} == opened, name
    (door,) = [
        node
        for node in MODULES["refimpl.train"].body
        if isinstance(node, ast.ImportFrom) and node.module == DOOR
    ]
    assert [alias.name for alias in door.names] == ["kept"]


def test_no_import_runs_upward_or_in_a_circle():
    """The order is that of the package's docstring."""
    TopologicalSorter(GRAPH).prepare()  # CycleError, if there is one
    floors = re.search(r"^1\. .*?\n\n", refimpl.__doc__, re.DOTALL | re.MULTILINE)[0]
    order = ["refimpl." + name for name in re.findall(r"`(\w+)`", floors)]
    tops = {".".join(name.split(".")[:2]) for name in MODULES} - {"refimpl"}
    assert sorted(order) == sorted(tops)
    floor = {name: at for at, name in enumerate(order)}
    for name, others in GRAPH.items():
        here = ".".join(name.split(".")[:2])
        for other in others - {"refimpl"} if here != "refimpl" else ():
            there = ".".join(other.split(".")[:2])
            assert there == here or floor[there] < floor[here], (name, other)
        assert here == "refimpl" or "refimpl" not in others, f"{name} asks for the top"


def test_the_page_is_a_page():
    assert len((PACKAGE / "train.py").read_text("utf-8").splitlines()) <= 150


def test_a_name_of_the_package_is_typed_as_it_is_found():
    """Type checkers read the imports, Python the table; of a module and a function
    with one name it is the function."""
    (typed,) = [node for node in MODULES["refimpl"].body if isinstance(node, ast.If)]
    homes = {
        alias.name: node.module.removeprefix("refimpl.")
        for node in typed.body
        if node.module != "refimpl"
        for alias in node.names
    }
    assert homes == refimpl._HOME and set(homes) <= set(dir(refimpl))
    for name, home in homes.items():
        module = importlib.import_module(f"refimpl.{home}")
        assert getattr(refimpl, name) is getattr(module, name)
    assert callable(refimpl.train) and refimpl.keep.__doc__
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = refimpl.trian


def test_every_method_has_a_file_of_its_name():
    """From which the command line knows it without torch."""
    assert sorted(refimpl.ALGORITHMS) == METHODS


LIGHT = """
import sys
from refimpl.shell.main import main

try:
    status = main(sys.argv[1:])
except SystemExit as ending:
    status = ending.code
heavy = {"torch", "transformers"} & set(sys.modules)
sys.exit(f"{sorted(heavy)} loaded" if heavy else status or 0)
"""
ANSWERED = {
    "--help": (0, "gpu-check"),
    "": (2, "the commands are train"),
    "fecth smollm2": (2, "did you mean 'fetch'?"),
    "train --help": (0, "--checkpoint-dir"),
    "train --algorithm gropo": (2, "did you mean 'grpo'?"),
    "curves --algorithm gropo": (2, "did you mean 'grpo'?"),
    "train --algorithm grpo --rolouts 3": (2, "--rollouts"),
}


@pytest.mark.parametrize("line", ANSWERED)
def test_help_and_a_misspelt_name_are_answered_without_torch(line, tmp_path):
    status, words = ANSWERED[line]
    done = own_process(LIGHT, *line.split(), cwd=tmp_path)
    assert (done.returncode, words in done.stdout + done.stderr) == (status, True), done


STOPPED = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except BaseException as error:
    raise ImportError("another error") from error
"""


@pytest.mark.parametrize(
    "line", ["train --algorithm grpo", "settings", "warm-start", "verl-config sapo"]
)
def test_ctrl_c_while_libraries_load_is_no_traceback(line, tmp_path):
    """As some of them, this one makes another error of it."""
    (tmp_path / "torch.py").write_text(STOPPED)
    start = (
        "import sys; sys.path.insert(0, sys.argv.pop()); import refimpl.__main__ as m"
    )
    run = f"{start}; sys.exit(m.main())"
    done = own_process(run, *line.split(), tmp_path)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


CHILD = """
import contextlib, io, json, os, random, signal, sys
import numpy, torch
from transformers.utils import logging

def state():
    return {
        "threads": torch.get_num_threads(),
        "progress bars": logging.is_progress_bar_enabled(),
        "verbosity": logging.get_verbosity(),
        "generators": str([random.getstate(), torch.get_rng_state().sum().item()]),
        "dtype": str(torch.get_default_dtype()),
        "Ctrl-C": str(signal.getsignal(signal.SIGINT)),
        "environment": str(sorted(os.environ.items())),
        "folder": os.getcwd(),
        "grad": torch.is_grad_enabled(),
    }

torch.set_num_threads(3)
states = [state()]
import refimpl, refimpl.shell.main
states.append(state())
config = refimpl.TrainConfig(
    rollouts=1, prompts_per_rollout=4, group_size=4, eval_problems=4,
)
threads = []
def reward(completions, **_):
    threads.append(torch.get_num_threads())
    return [float(i) for i, _ in enumerate(completions)]
refimpl.train("grpo", config=config, reward=reward, progress=False)
states.append(state())
with contextlib.redirect_stdout(io.StringIO()) as told, contextlib.suppress(SystemExit):
    refimpl.shell.main.main(["train", "--help"])
print(json.dumps({
    "states": states,
    "threads": threads,
    "help": "--checkpoint-dir" in told.getvalue(),
    "modules": sorted(sys.modules),
}))
"""


@pytest.mark.slow
def test_importing_training_and_asking_for_help_leave_the_process_as_it_was(
    tmp_path, monkeypatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    done = own_process(CHILD, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    before, imported, trained = found["states"]
    assert before == imported == trained
    assert before["threads"] == 3 and found["threads"] == [1]
    assert before["progress bars"] is True and found["help"]
    packages = ("matplotlib", "IPython", "ipywidgets", "pandas", "scipy.stats")
    unwanted = (*ROOMS[1:], *packages)
    assert not [name for name in found["modules"] if name.startswith(unwanted)]
    assert list(tmp_path.iterdir()) == []
