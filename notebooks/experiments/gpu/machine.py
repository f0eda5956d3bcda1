"""What a machine does while something is measured on it: other work, memory, waits.

And how fast a device could be. Work on it takes at least

    seconds ≥ max(bytes / bandwidth, launches × launch)

bytes      that cross its memory, see `least_bytes`
bandwidth  bytes per second of a large copy, read and written
launches   of kernels by the host, counted by the profiler; a CUDA graph is one
launch     seconds per tiny kernel, of many in a row
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from refimpl.models import Model, count_parameters
from refimpl.rollout import Rollout

ALONE = 0.1
"""Cores: with more than this kept busy by other work, a measurement was disturbed."""
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
COPIES = ("cudaMemcpyAsync", "cudaMemcpy")  # one to the host waits, too
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch")


class Load(NamedTuple):
    """Seconds so far: of the clock, of all cores at work, of this process at work."""

    clock: float
    machine: float | None
    own: float


def load() -> Load:
    """Now; subtract with `others`. `machine` is None on a system without /proc."""
    times = os.times()
    return Load(time.perf_counter(), _all_cores(), sum(times[:4]))


def _all_cores() -> float | None:
    """What /proc/stat says; a hypervisor's theft counts as work, of somebody else."""
    try:
        fields = [int(n) for n in Path("/proc/stat").read_text().split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _, _, irq, softirq, steal = fields
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def others(since: Load) -> float | None:
    """How many cores other processes kept busy since then; None where unknown."""
    now = load()
    if now.machine is None or since.machine is None:
        return None
    busy = (now.machine - since.machine) - (now.own - since.own)
    return max(0.0, busy / (now.clock - since.clock))


def disturbed(busy: float | None) -> str:
    """What to print beside a measurement; empty if the process was alone."""
    if busy is None:
        return "other work on this machine: unknown"
    return f"NOT ALONE: other work took {busy:.1f} cores" if busy > ALONE else ""


def peak_memory() -> int | None:
    """The largest resident size of this process so far, MiB."""
    try:  # getrusage would say that of the parent, where this was larger
        status = Path("/proc/self/status").read_text()
        return round(int(status.split("VmHWM:")[1].split()[0]) / 2**10)
    except (OSError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10))


class Cost(NamedTuple):
    """Median seconds; the share of them in which the host waits for the device, and
    the kernels that it launches: both None where the profiler sees no device."""

    seconds: float
    waiting: float | None
    launches: int | None


def cost(work: Callable, device: str, repeats: int, profiled: bool = True) -> Cost:
    """Of `work`, after a first call that pays for set-up.

    If `profiled`, the waits are those of one more call, under the profiler (which slows
    the host: without it their share is rather larger): time in CUDA's calls that
    synchronise or copy.
    """
    work()
    seconds = statistics.median(_seconds(work, device) for _ in range(repeats))
    gpu = torch.profiler.ProfilerActivity.CUDA
    known = device.startswith("cuda") and gpu in torch.profiler.supported_activities()
    if not (profiled and known):
        return Cost(seconds, None, None)
    with torch.profiler.profile(activities=[gpu], acc_events=True) as p:
        longer = _seconds(work, device)
    return Cost(seconds, *seen(p.key_averages(), longer))


def seen(events: Any, seconds: float) -> tuple[float | None, int | None]:
    """Share of time waited, and launches, from the profiler's averages."""
    launches = sum(e.count for e in events if e.key.startswith(LAUNCHES))
    if not launches:
        return None, None
    waited = sum(e.self_cpu_time_total for e in events if e.key in WAITS + COPIES)
    return waited / 1e6 / seconds, launches  # from µs


def _seconds(work: Callable, device: str) -> float:
    start = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


class Limits(NamedTuple):
    """Bytes per second of the memory; seconds per launch of a kernel."""

    bandwidth: float
    launch: float

    def seconds(self, bytes: float, launches: int | None) -> float:
        """The least that such work takes."""
        return max(bytes / self.bandwidth, (launches or 0) * self.launch)


def limits(device: str, size: int = 2**28, many: int = 2_000) -> Limits:
    """A copy of `size` bytes, and `many` additions to one number; best of five."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target, number = torch.empty_like(source), torch.zeros(1, device=device)

    def add() -> None:
        for _ in range(many):
            number.add_(1)

    works = (lambda: target.copy_(source), add)
    copied, added = (min(_seconds(w, device) for _ in range(6)) for w in works)
    return Limits(2 * size / copied, added / many)


def least_bytes(model: Model, rollout: Rollout, width: int, passes: int = 0) -> float:
    """Bytes that must be read to sample a rollout, and to update on it.

        width · (weights · (steps + 2 passes) + 2 · layers · heads · Σ cached tokens)

    All weights at each step, and twice in each pass of a micro-batch, forwards and
    backwards; before each token the keys and values of all that stand before it.
    `width`: bytes per number.
    """
    config, n = model.config, rollout.length.double()
    heads = config.num_key_value_heads * config.head_dim
    cached = (rollout.prompt_length * n + n * (n - 1) / 2).sum().item()
    weights = count_parameters(model) * (rollout.mask.shape[1] + 2 * passes)
    return width * (weights + 2 * config.num_hidden_layers * heads * cached)
