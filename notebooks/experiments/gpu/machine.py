"""The state of a machine during a measurement: other work, memory, waits.

Also the speed limit of a device. Work on it takes at least

    seconds ≥ max(bytes / bandwidth, launches × launch)

bytes      bytes that cross its memory, see `least_bytes`
bandwidth  bytes per second of a large copy, read and written
launches   kernel launches by the host, counted by the profiler (one for a CUDA graph)
launch     seconds per tiny kernel, measured over many in a row
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
"""A measurement was disturbed if other work kept more cores busy than this."""
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
COPIES = ("cudaMemcpyAsync", "cudaMemcpy")  # copies to the host wait as well
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch")


class Load(NamedTuple):
    """Seconds so far: by the clock, of work on all cores, of work in this process."""

    clock: float
    machine: float | None
    own: float


def load() -> Load:
    """The load until now, for `others`. `machine` is None on a system without /proc."""
    times = os.times()
    return Load(time.perf_counter(), _all_cores(), sum(times[:4]))


def _all_cores() -> float | None:
    """Busy seconds from /proc/stat. Time that a hypervisor steals is other work."""
    try:
        fields = [int(n) for n in Path("/proc/stat").read_text().split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _, _, irq, softirq, steal = fields
    ticks = user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def others(since: Load) -> float | None:
    """How many cores other processes have kept busy since then, or None if unknown."""
    now = load()
    if now.machine is None or since.machine is None:
        return None
    busy = (now.machine - since.machine) - (now.own - since.own)
    return max(0.0, busy / (now.clock - since.clock))


def disturbed(busy: float | None) -> str:
    """A remark to print with a measurement, empty if the process was alone."""
    if busy is None:
        return "other work on this machine: unknown"
    return f"NOT ALONE: other work took {busy:.1f} cores" if busy > ALONE else ""


def peak_memory() -> int | None:
    """The largest resident size of this process so far, MiB."""
    try:  # getrusage would report the parent's peak if that was larger
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
    """Median seconds, the share of them in which the host waits, and kernel launches.

    The latter two are None if the profiler sees no device.
    """

    seconds: float
    waiting: float | None
    launches: int | None


def cost(work: Callable, device: str, repeats: int, profiled: bool = True) -> Cost:
    """Measure the cost of `work` after a first call for set-up.

    If `profiled`, one more call under the profiler measures the waits: the time in CUDA
    calls that synchronise or copy. The profiler slows down the host, so their share is
    rather larger without it.
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
    """The share of time waited and the launches, from the profiler's averages."""
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
    """A device's bytes per second of memory, and seconds per launch of a kernel."""

    bandwidth: float
    launch: float

    def seconds(self, bytes: float, launches: int | None) -> float:
        """The least time that such work takes."""
        return max(bytes / self.bandwidth, (launches or 0) * self.launch)


def limits(device: str, size: int = 2**28, many: int = 2_000) -> Limits:
    """Time a copy of `size` bytes and `many` additions to one number, best of five."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target, number = torch.empty_like(source), torch.zeros(1, device=device)

    def add() -> None:
        for _ in range(many):
            number.add_(1)

    works = (lambda: target.copy_(source), add)
    copied, added = (min(_seconds(w, device) for _ in range(6)) for w in works)
    return Limits(2 * size / copied, added / many)


def least_bytes(model: Model, rollout: Rollout, width: int, passes: int = 0) -> float:
    """Bytes that must be read to sample a rollout and to update on it.

        width · (weights · (steps + 2 passes) + 2 · layers · heads · Σ cached tokens)

    Each step reads all weights, and each pass of a micro-batch reads them twice,
    forwards and backwards. Each token reads the keys and values of all tokens before
    it. `width`: bytes per number.
    """
    config, n = model.config, rollout.length.double()
    heads = config.num_key_value_heads * config.head_dim
    cached = (rollout.prompt_length * n + n * (n - 1) / 2).sum().item()
    weights = count_parameters(model) * (rollout.mask.shape[1] + 2 * passes)
    return width * (weights + 2 * config.num_hidden_layers * heads * cached)
