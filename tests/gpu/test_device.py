"""The package on a simulated CUDA device, which must be there before torch is: in a
process of its own. What is tried stands in on_device.py."""

import re

import pytest

from tests.gpu import simgpu
from tests.worlds import own_process

RUN = """
from tests.gpu import simgpu
simgpu.activate()
import pytest
options = "-q -p no:cacheprovider -p no:xdist -p no:nbval -o addopts= --durations=4"
raise SystemExit(pytest.main([*options.split(), "tests/gpu/on_device.py"]))
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(simgpu.missing()), reason=simgpu.missing())
def test_everything_runs_on_a_simulated_gpu():
    done = own_process(RUN, SIMGPU_SAME_DICE="1", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 50
