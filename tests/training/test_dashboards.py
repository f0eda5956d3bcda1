"""The guide's hooks, which send a run's curves elsewhere, as they stand there."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import refimpl as rl

PAGE = Path(__file__).parents[2] / "notebooks/guide/command_line.md"
SECTION = PAGE.read_text("utf-8").partition("\n## Curves in ")[2].partition("\n## ")[0]
WANDB, TENSORBOARD = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)


@pytest.fixture
def train(monkeypatch):
    """Two short rollouts in place of ten; returns the histories."""
    histories, whole = [], rl.train

    def short(method, config, hooks):
        few = {"prompts_per_rollout": 4, "eval_problems": 4, "eval_every": 2}
        config = rl.TrainConfig(rollouts=2, **few)
        histories.append(whole(method, config=config, hooks=hooks))

    monkeypatch.setattr(rl, "train", short)
    return histories


def measured(history) -> dict[tuple[str, int], float]:
    rows = enumerate(history.rows)
    return {(k, n): x for n, row in rows for k, x in row.items() if x is not None}


def test_tensorboard_shows_what_the_history_holds(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(TENSORBOARD, {})
    events = EventAccumulator("runs/sapo").Reload()
    names = events.Tags()["scalars"]
    shown = {(k, e.step): e.value for k in names for e in events.Scalars(k)}
    expected = measured(train[0])
    assert ("accuracy", 0) not in shown and ("accuracy", 1) in shown
    assert shown == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_wandb_receives_what_the_history_holds(train, monkeypatch):
    """Here an object with the three calls stands in for W&B and for Trackio."""
    calls = []
    wandb = SimpleNamespace(
        init=lambda project: calls.append(project),
        log=lambda row, step: calls.append({(k, step): x for k, x in row.items()}),
        finish=lambda: calls.append("finished"),
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    exec(WANDB, {})
    project, first, second, finished = calls
    assert (project, finished) == ("sums", "finished")
    assert first | second == pytest.approx(measured(train[0]), nan_ok=True)
