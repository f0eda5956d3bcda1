"""The bridge to TRL on the simulated CUDA device of tests/gpu."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL, verl, Liger: tests/bridges/requirements.txt")

HERE = Path(__file__).parent
DEVICE = HERE.parent / "gpu"
sys.path.append(str(DEVICE))
import simgpu  # noqa: E402

RUN = """
import json, sys, tempfile
import simgpu
simgpu.activate()  # before torch is there
from bridge_world import CASES, gradient, steps_of, trainer_of
found = {}
for name, case in CASES.items():
    (here, ratio), (there, _) = (gradient(case, use_cpu=x) for x in (False, True))
    assert here.is_cuda and not there.is_cuda
    found[name] = (here.cpu() - there).abs().max().item(), ratio
with tempfile.TemporaryDirectory() as folder:  # TRL samples there as well
    trainer = trainer_of(folder, {"use_cpu": False, "max_steps": 3}, algorithm="sapo")
    trainer.train()
found["sampled"] = 0.0, max(row["ratio/max_deviation"] for row in steps_of(trainer))
print(json.dumps(found))
"""


@pytest.mark.skipif(bool(simgpu.missing()), reason=simgpu.missing())
def test_two_steps_of_every_loss_are_those_of_the_cpu():
    path = os.pathsep.join([str(HERE), str(DEVICE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=HERE.parents[1],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    for name, (gap, ratio) in json.loads(done.stdout.splitlines()[-1]).items():
        assert gap < 1e-12 and ratio > 1e-3, name
