"""What the core leaves alone: what is built on it, and the process it runs in."""

import ast
import json
from pathlib import Path

import pytest

import refimpl
from tests.worlds import own_process

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


CHILD = """
import json, os, random, signal, sys
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
import refimpl
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
print(json.dumps({
    "states": states,
    "threads": threads,
    "modules": sorted(sys.modules),
}))
"""


@pytest.mark.slow
def test_importing_and_training_leave_the_process_as_it_was(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    done = own_process(CHILD, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    before, imported, trained = found["states"]
    assert before == imported == trained
    assert before["threads"] == 3 and found["threads"] == [1]
    assert before["progress bars"] is True
    packages = ("matplotlib", "IPython", "ipywidgets", "pandas", "scipy.stats")
    unwanted = (*ABOVE[1:], *packages)
    assert not [name for name in found["modules"] if name.startswith(unwanted)]
    assert list(tmp_path.iterdir()) == []
