"""The script that chapter 14 runs inside TRL, on two processes as there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed")

SCRIPT = Path(__file__).parents[2] / "notebooks" / "course" / "in_trl.py"


@pytest.mark.slow
def test_two_processes_learn_the_sums():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launch, "--nproc_per_node", "2", str(SCRIPT)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rewards = json.loads(done.stdout.splitlines()[-1])
    assert len(rewards) == 20  # of four updates each
    assert rewards[0] < 0.6 and sum(rewards[-5:]) / 5 > 0.8, rewards
