"""What this package leaves as it was: the process that imports it, and its threads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from refimpl import models, sft
from refimpl.sft import WarmStart
from refimpl.trainer import evaluate
from tests.worlds import TOKENIZER, small_run, warm_model

ROOT = Path(__file__).parents[2]
CHILD = """
import json, os, random, signal, sys
import numpy, torch
from transformers.utils import logging

def state():
    return {
        "threads": torch.get_num_threads(),
        "progress bars": logging.is_progress_bar_enabled(),
        "verbosity": logging.get_verbosity(),
        "dice": str([random.getstate(), torch.get_rng_state().sum().item()]),
        "dtype": str(torch.get_default_dtype()),
        "Ctrl-C": str(signal.getsignal(signal.SIGINT)),
        "environment": str(sorted(os.environ.items())),
        "folder": os.getcwd(),
        "grad": torch.is_grad_enabled(),
    }

torch.set_num_threads(3)
found = [state()]
import refimpl
import refimpl.__main__, refimpl.lab.bench, refimpl.lab.grid
found.append(state())
config = refimpl.TrainConfig(
    rollouts=1, prompts_per_rollout=4, group_size=4, eval_problems=4,
)
threads = []
def reward(completions, **_):
    threads.append(torch.get_num_threads())
    return [float(i) for i, _ in enumerate(completions)]
refimpl.train("grpo", config=config, reward=reward, progress=False)
found.append(state())
heavy = {"matplotlib", "IPython", "ipywidgets", "pandas"} & set(sys.modules)
print(json.dumps({"states": found, "heavy": list(heavy), "threads": threads}))
"""


@pytest.mark.slow
def test_importing_and_training_leave_the_process_as_it_was(tmp_path):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    before, imported, trained = found["states"]
    assert imported == before
    assert trained == before
    assert before["threads"] == 3 and found["threads"] == [1]
    assert before["progress bars"] is True
    assert found["heavy"] == []
    assert list(tmp_path.iterdir()) == []


# Threads


@pytest.fixture
def three(monkeypatch):
    """Three threads, as a host process may have set; as before after the test."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def threads(monkeypatch):
    """Work by name → the threads that models had while it was done."""
    seen, forward = set(), torch.nn.Embedding.forward

    def spy(self, ids):
        if len(ids) > 16:  # not when an architecture is tried out
            seen.add(torch.get_num_threads())
        return forward(self, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", spy)

    def found(name) -> set[int]:
        seen.clear()
        if name == "train":
            small_run(rollouts=1, group_size=8)
        if name == "evaluate":
            evaluate(warm_model(), TOKENIZER, problems=32)
        if name == "sft":
            sft.train(WarmStart(skill_steps=1, habit_steps=1, batch_size=32))
        return seen

    return found


WORKS = ["train", "evaluate", "sft"]


@pytest.mark.parametrize("name", WORKS)
def test_a_small_model_works_on_one_thread(name, three, threads):
    assert threads(name) == {1}
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("name", WORKS)
def test_what_the_environment_asks_for_is_obeyed(name, three, threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads(name) == {3}


@pytest.mark.parametrize("name", WORKS)
def test_a_large_model_works_on_all_threads(name, three, threads, monkeypatch):
    monkeypatch.setattr(models, "SMALL", 1000)
    assert threads(name) == {3}


def test_the_threads_are_given_back_after_an_error(three):
    with pytest.raises(ValueError, match="must return 16"):
        small_run(reward=lambda **_: [])
    assert torch.get_num_threads() == 3
