"""`python -m experiments.gpu.profile OUT.json`: how a toy GRPO rollout spends its time.

Phases are timed by the clock alone. One more run with the same seed, and so with the
same tokens, samples under a profiler. Its times of operators are subtracted from the
clock's time, and the rest is Python and the overhead of torch.
"""

import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import torch

from experiments import store
from experiments.gpu import machine
from refimpl import TrainConfig, loop, train
from refimpl.options import Run
from refimpl.pretrained import fast
from refimpl.sampling import Policy

SAMPLING = "sampling"
PHASES = {
    (Policy, "respond"): SAMPLING,
    (loop, "collect"): "rewards, advantages",
    (Run, "read"): "update: forward",
    (torch.Tensor, "backward"): "update: backward",
    (loop, "optimizer_step"): "update: optimizer",
    (loop, "updates"): "update: loss, metrics",
}
"""The phase that each function is, apart from its calls of the others."""
KINDS = {"scaled_dot_product|attention": "attention", "mm$|linear": "matrix products"}
REST, PYTHON = "other operators", "Python and overhead"


class Clock:
    """Measure the seconds of each phase, without the phases inside it."""

    def __init__(self) -> None:
        self.seconds: defaultdict = defaultdict(float)
        self.stack, self.mark = ["elsewhere"], time.perf_counter()

    def note(self) -> None:
        now = time.perf_counter()
        self.seconds[self.stack[-1]] += now - self.mark
        self.mark = now

    def timing(self, work: Callable, phase: str) -> Callable:
        def timed(*given, **named):
            self.note()
            self.stack.append(phase)
            try:
                return work(*given, **named)
            finally:
                self.note()
                self.stack.pop()

        return timed


def rollouts(n: int, seconds: dict, wrapped: dict) -> None:
    """Train for `n` rollouts after a first one, which `seconds` does not count."""

    def forget(run, step: int) -> None:
        if step == 0:
            seconds.clear()

    with ExitStack() as stack:
        for (owner, name), work in wrapped.items():
            stack.enter_context(patch.object(owner, name, work))
        config = TrainConfig(rollouts=n + 1, eval_problems=1)
        train("grpo", config=config, hooks=[forget], progress=False)


def phases(n: int) -> dict[str, float]:
    """Seconds per rollout by phase, without a profiler."""
    clock = Clock()
    works = {(o, f): clock.timing(getattr(o, f), PHASES[o, f]) for o, f in PHASES}
    rollouts(n, clock.seconds, works)
    return {phase: clock.seconds[phase] / n for phase in PHASES.values()}


def operators(n: int) -> dict[str, float]:
    """Seconds per rollout in operators during sampling, by kind."""
    seconds: defaultdict = defaultdict(float)
    respond = Policy.respond

    def watched(*given, **named):
        with torch.profiler.profile() as seen:
            answered = respond(*given, **named)
        for event in seen.key_averages():
            kinds = [KINDS[k] for k in KINDS if re.search(k, event.key)]
            seconds[(kinds or [REST])[0]] += event.self_cpu_time_total / 1e6 / n
        return answered

    rollouts(n, seconds, {(Policy, "respond"): watched})
    return seconds


def profile(n: int = 8, turns: int = 3) -> dict[str, float]:
    """Seconds per rollout by phase, of the fastest turn."""
    best = min((phases(n) for _ in range(turns)), key=lambda x: sum(x.values()))
    inside = operators(n)
    parts = {name: inside[name] for name in (*KINDS.values(), REST)}
    parts[PYTHON] = max(0.0, best[SAMPLING] - sum(parts.values()))
    split = {f"{SAMPLING}: {name}": seconds for name, seconds in parts.items()}
    return split | {name: x for name, x in best.items() if name != SAMPLING}


def main(out: str) -> None:
    fast.use()
    since = machine.load()
    found: dict = {"seconds per rollout": profile(), **store.provenance()}
    found["cores that other work took"] = machine.others(since)
    for name, seconds in found["seconds per rollout"].items():
        print(f"{name:>32}  {1000 * seconds:6.1f} ms")
    print(machine.disturbed(found["cores that other work took"]))
    Path(out).write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
