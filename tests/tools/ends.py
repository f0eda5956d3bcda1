"""Short trainings, each ended at a random moment in a random way: what was lost?

    python -m tests.tools.ends [--minutes 2] [--runs 100] [--seed 0]

A run is `python -m refimpl train` in a process of its own, which notes each rollout
that it completes. Afterwards its history, policy and checkpoint are looked at, and some
of the checkpoints are gone on from: the run must be the one that nothing ended.
"""

import contextlib
import functools
import inspect
import math
import os
import pty
import random
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path

import torch
import tyro
from tabulate import tabulate

from refimpl import History, checkpoint, cli, loop, samples, tasks

ROLLOUTS, EVERY = 8, 3
SETTINGS = {
    "prompts_per_rollout": 4,
    "group_size": 4,
    "max_new_tokens": 24,
    "minibatches": 2,
    "eval_problems": 8,
    "checkpoint_every": EVERY,
    "samples_every": 2,
    "learning_rate": 1e-3,
}
OUTPUTS = ["--checkpoint-dir", "c", "--history", "h.csv", "--samples", "s.jsonl"]
OUTPUTS += ["--save", "p"]
SIGNALS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, "SIGKILL": -9}


class Way:
    """How a run is ended: from inside at rollout `when`, or from outside after it."""

    status: tuple[int, ...] = (0,)
    whole = True  # the checkpoint holds every complete rollout

    def inside(self, when: int) -> None:
        """In the run's process, before it begins."""

    def outside(self, child: int, streams: dict[str, int]) -> None:
        """In this process, a moment after rollout `when`."""


class Signal(Way):
    """Sent once, or twice."""

    def __init__(self, name: str, times: int = 1):
        self.number, self.times = getattr(signal, name), times
        late = -self.number  # when everything was written, it ends the process
        self.status = (0, SIGNALS[name], late)
        self.whole = times == 1 and name != "SIGKILL"

    def outside(self, child, streams):
        for _ in range(self.times):
            os.kill(child, self.number)
            time.sleep(0.01)


class Closed(Way):
    """Nobody reads a stream any more; of a terminal, neither, and it hangs up."""

    def __init__(self, stream: str):
        self.stream = stream
        self.status = (0, 129, 141) if stream == "terminal" else (0, 141)

    def outside(self, child, streams):
        os.close(streams.pop(self.stream))


class Failing(Way):
    """What a run calls raises, or returns nonsense, once rollout `when` is complete."""

    def __init__(self, owner, name, fault, status=2, whole=True):
        self.owner, self.name, self.fault = owner, name, fault
        self.status, self.whole = (0, status), whole  # it may be complete before

    def inside(self, when):
        works = getattr(self.owner, self.name)

        @functools.wraps(works)  # a checkpoint names its reward
        def fails(*given, **named):
            if complete(Path()) <= when:
                return works(*given, **named)
            return self.fault(works, *given, **named)

        found = inspect.getattr_static(self.owner, self.name)
        static = isinstance(found, staticmethod)
        setattr(self.owner, self.name, staticmethod(fails) if static else fails)


def away(works, *given, **named):
    raise OSError("the judge is away")


def nan(works, *given, **named):
    return [*works(*given, **named)[:-1], float("nan")]


def bug(works, *given, **named):
    return 1 / 0


def diverge(works, run, *given):
    norm = works(run, *given)
    next(run.model.parameters()).data.fill_(torch.nan)
    return norm


def full(works, *given):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    return works(*given)


WORLD = tasks.Arithmetic
WAYS: dict[str, Way] = {
    "Ctrl-C": Signal("SIGINT"),
    "Ctrl-C twice": Signal("SIGINT", times=2),
    "SIGTERM": Signal("SIGTERM"),
    "SIGHUP twice": Signal("SIGHUP", times=2),
    "SIGKILL": Signal("SIGKILL"),
    "closed stdout": Closed("stdout"),
    "closed stderr": Closed("stderr"),
    "closed terminal": Closed("terminal"),
    "the reward raises": Failing(WORLD, "reward", away),
    "the reward is NaN": Failing(WORLD, "reward", nan),
    "the task raises": Failing(WORLD, "sample", away),
    "a fault of ours": Failing(loop, "describe", bug, status=1),
    "weights not finite": Failing(loop, "optimizer_step", diverge, whole=False),
    "full disk": Failing(samples, "show", full, whole=False),
}


def child(way: Way, when: int, folder: Path, resume: bool = False) -> None:
    """The run, in a process of its own."""
    os.chdir(folder)
    add = History.add

    def noting(self, step, *row):
        add(self, step, *row)
        with open("complete", "a") as file:
            print(step, file=file)

    History.add = noting
    way.inside(when)
    sets = [word for n, x in SETTINGS.items() for word in ("--set", f"{n}={x}")]
    given = ["train", "--algorithm", "grpo", "--rollouts", str(ROLLOUTS)]
    status = 1
    try:
        status = cli.main([*given, *sets, *OUTPUTS, *["--resume"] * resume])
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
    except KeyboardInterrupt:  # after the command
        status = SIGNALS["SIGINT"]
    finally:
        os._exit(status)


def started(way: Way, *given, **named) -> tuple[int, dict[str, int]]:
    """A run's process, and the ends of its streams that it does not hold."""
    if isinstance(way, Closed) and way.stream == "terminal":
        pid, terminal = pty.fork()
        if not pid:
            child(way, *given, **named)
        return pid, {"terminal": terminal}
    pipes = {name: os.pipe() for name in ("stdout", "stderr")}
    if not (pid := os.fork()):
        for number, name in enumerate(pipes, 1):
            os.dup2(pipes[name][1], number)
            os.close(pipes[name][0])
            os.close(pipes[name][1])
        child(way, *given, **named)
    for _, write in pipes.values():
        os.close(write)
    return pid, {name: read for name, (read, _) in pipes.items()}


def complete(folder: Path) -> int:
    """How many rollouts a run has noted as complete."""
    file = folder / "complete"
    return len(file.read_text().split()) if file.exists() else 0


def ended(way: Way, when: int, moment: float, folder: Path, **given) -> int:
    """The exit status of a run that is ended so many seconds after rollout `when`."""
    pid, streams = started(way, when, folder, **given)
    began = time.monotonic()
    ends = math.inf  # until rollout `when` is complete
    while True:
        now = time.monotonic()
        if ends == math.inf and complete(folder) > when:
            ends = now + moment
        if now > ends:
            way.outside(pid, streams)
            ends = math.nan  # once
        if now > began + 120:
            os.kill(pid, signal.SIGKILL)
        drain(streams)
        gone, state = os.waitpid(pid, os.WNOHANG)
        if gone:
            for stream in streams.values():
                os.close(stream)
            return os.waitstatus_to_exitcode(state)
        time.sleep(0.002)


def drain(streams: dict[str, int]) -> None:
    """Read what a run has printed, so that it does not wait for somebody who does."""
    for stream in streams.values():
        os.set_blocking(stream, False)
        with contextlib.suppress(OSError):
            os.read(stream, 1 << 16)


def kept(folder: Path) -> tuple[int, int]:
    """Rollouts in the history, and in the checkpoint."""
    rows = saved = 0
    if (folder / "h.csv").exists():
        rows = len(History.load(folder / "h.csv"))
    if (folder / "c" / checkpoint.NAME).exists():
        saved = len(checkpoint.load(folder / "c")["rows"])
    return rows, saved


def faults(name: str, way: Way, status: int, folder: Path) -> list[str]:
    """What is wrong after a run has ended."""
    done, (rows, saved) = complete(folder), kept(folder)
    found = []
    if status not in way.status:
        found.append(f"exit status {status}")
    if name != "SIGKILL" and rows < done:
        found.append(f"{done - rows} rollouts lost from the history")
    if name not in ("SIGKILL", "full disk") and not (folder / "p/config.json").exists():
        found.append("no policy")
    least = done if way.whole else done // EVERY * EVERY
    if name in ("SIGKILL", "Ctrl-C twice"):  # at once: perhaps before its checkpoint
        least = max(0, done - 1) // EVERY * EVERY
    if saved < least - (name == "full disk") * EVERY:
        found.append(f"the checkpoint lacks {least - saved} rollouts")
    left = {".new.", ".h.csv.", ".s.jsonl."}
    if name != "SIGKILL" and any(
        path.name.startswith(tuple(left)) for path in folder.rglob("*")
    ):
        found.append("scratch files are left")
    return found


def main(minutes: float = 60.0, runs: int = 100, seed: int = 0) -> None:
    chance, began = random.Random(seed), time.monotonic()
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    wrong = []
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        rewards = []
        for n in range(runs):
            if time.monotonic() - began > 60 * minutes:
                break
            folder = Path(scratch, str(n))
            folder.mkdir()
            if n == 0:  # the run that nothing ends
                ended(Way(), ROLLOUTS, 0.0, folder)
                rewards = History.load(folder / "h.csv")["reward"]
                continue
            name = [*WAYS, chance.choice([*WAYS])][min(n - 1, len(WAYS))]
            when, moment = chance.randrange(ROLLOUTS - 1), chance.uniform(0, 0.4)
            status = ended(WAYS[name], when, moment, folder)
            found = faults(name, WAYS[name], status, folder)
            saved = kept(folder)[1]
            goes_on = saved > 0 and chance.random() < 0.25
            counts = (1, complete(folder), goes_on)
            table[name] = [a + b for a, b in zip(table[name], counts, strict=True)]
            if goes_on:
                ended(Way(), ROLLOUTS, 0.0, folder, resume=True)
                if History.load(folder / "h.csv")["reward"] != rewards:
                    found.append(f"gone on from rollout {saved}, it is another run")
            wrong += [f"{name}, run {n}, after rollout {when}: {f}" for f in found]
    lines = [[name, *counts] for name, counts in table.items()]
    head = ["ended by", "runs", "complete rollouts", "gone on from"]
    print(tabulate(lines, head), *wrong, f"{len(wrong)} faults", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    tyro.cli(main)
