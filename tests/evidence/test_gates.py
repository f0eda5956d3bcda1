"""One side or two on a pretrained model: what is declared, and when it stops."""

import time

import pandas as pd
import pytest

from experiments.gpu import gates
from experiments.gpu.gates import PAIRS, RATES, WORLDS, Gates
from refimpl.history import History

JOBS = [*Gates().jobs()]


def test_no_run_begins_when_the_time_is_over(tmp_path, monkeypatch):
    """The one that has begun is stored, and a second call makes the others."""
    made, row = [], dict.fromkeys(Gates.columns, 0.5)

    def make(self, job):
        made.append(job)
        return History("grpo", [row | {"step": 0.0}])

    worlds = {name: (lambda: "a task", limit) for name, (_, limit) in WORLDS.items()}
    monkeypatch.setattr(gates, "WORLDS", worlds)
    monkeypatch.setattr(Gates, "make", make)
    monkeypatch.setattr(Gates, "check", lambda self, job: None)
    monkeypatch.setattr(Gates, "weights", lambda self, job: "abc")
    few = JOBS[:3]
    ends = iter([0.0, 2.0])  # before the first run, and before the second
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: next(ends))
        Gates("cpu").fill(tmp_path / "some", few, until=1.0)
    assert made == few[:1]
    Gates("cpu").fill(tmp_path / "some", few)
    assert made == few
    known = gates.areas(tmp_path / "some")
    wanted = [(*job.values(),) for job in few]
    assert sorted(known.index.to_list()) == sorted(wanted)
    assert known.unique() == [0.5 / 24], "rollouts that are missing count as 0"


def test_a_seed_counts_with_all_of_its_runs():
    names = ["arm", "task", "updates", "rate", "seed"]
    one, two = PAIRS["hard"]
    cells = {
        (arm, "sums", 16, rate, seed): (arm == one) * (0.1 + 0.1 * seed)
        for arm in (one, two)
        for rate in RATES[16]
        for seed in range(3)
    }
    table = pd.Series(cells).rename_axis(names)
    assert gates.compared(table, one, two, "sums", 16).effect == pytest.approx(0.2)
    del cells[two, "sums", 16, RATES[16][0], 2]
    fewer = gates.compared(pd.Series(cells).rename_axis(names), one, two, "sums", 16)
    assert (fewer.starts, fewer.effect) == (2, pytest.approx(0.15))
