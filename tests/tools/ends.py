"""Short trainings, each ended from outside at a random moment: what was lost?

    python -m tests.tools.ends [--minutes 2] [--runs 100] [--seed 0]

A run is `python -m refimpl train` in a process of its own, which notes each rollout
that it completes. Afterwards its history, policy and checkpoint are looked at, and some
of the checkpoints are gone on from: the run must be the one that nothing ended. What
ends a run from inside is in `tests/training/test_hooks.py`.
"""

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

import tyro

from refimpl import History, checkpoint, cli

ROLLOUTS, EVERY = 8, 3
WORDS = f"""train --algorithm grpo --rollouts {ROLLOUTS} --prompts-per-rollout 4
--group-size 4 --max-new-tokens 24 --minibatches 2 --learning-rate 1e-3
--eval-problems 8 --samples-every 2 --checkpoint-every {EVERY} --checkpoint-dir c
--history h.csv --samples s.jsonl --save p""".split()
WAYS: dict[str, tuple] = {  # a signal and how often, or a stream that is closed
    "Ctrl-C": (signal.SIGINT, 1),
    "Ctrl-C twice": (signal.SIGINT, 2),
    "SIGTERM": (signal.SIGTERM, 1),
    "SIGHUP twice": (signal.SIGHUP, 2),
    "SIGKILL": (signal.SIGKILL, 1),
    "closed stdout": (1, 0),
    "closed stderr": (2, 0),
}
STATUS = {"Ctrl-C": 130, "SIGTERM": 143, "SIGHUP": 129, "SIGKILL": -9, "closed": 1}
"""By the first word of a way. A run that was done before it ends with 0."""


def child(folder: Path, resume: bool, pipes: dict) -> None:
    """The run, in a process of its own."""
    for number, (read, write) in pipes.items():
        os.dup2(write, number)
        os.close(read)
    os.chdir(folder)
    add, status = History.add, 1

    def noting(self, step, *row):
        add(self, step, *row)
        with open("complete", "a") as file:
            print(step, file=file)

    History.add = noting
    try:
        status = cli.main([*WORDS, *["--resume"] * resume])
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
    except KeyboardInterrupt:  # after the command
        status = STATUS["Ctrl-C"]
    finally:
        os._exit(status)


def complete(folder: Path) -> int:
    """How many rollouts a run has noted as complete."""
    file = folder / "complete"
    return len(file.read_text().split()) if file.exists() else 0


def ended(folder: Path, way=None, when=0, moment=0.0, resume=False) -> int:
    """The exit status of a run that is ended so many seconds after rollout `when`."""
    pipes = {number: os.pipe() for number in (1, 2)}  # which hold all that it prints
    run = get_context("fork").Process(target=child, args=(folder, resume, pipes))
    run.start()
    late = time.monotonic() + 120
    while run.is_alive() and complete(folder) <= when and time.monotonic() < late:
        time.sleep(0.002)
    run.join(moment)
    if way and run.is_alive():
        number, times = way
        if not times:
            for end in pipes.pop(number):
                os.close(end)
        for _ in range(times):
            os.kill(run.pid, number)
            time.sleep(0.01)
    run.join(120)
    run.kill()
    run.join()
    for pipe in pipes.values():
        for end in pipe:
            os.close(end)
    return run.exitcode


def saved(folder: Path) -> int:
    """How many rollouts the checkpoint holds."""
    there = (folder / "c" / checkpoint.NAME).exists()
    return len(checkpoint.load(folder / "c")["rows"]) if there else 0


def lost(name: str, status: int, folder: Path) -> list[str]:
    """What is wrong after a run has ended."""
    killed, history = name == "SIGKILL", folder / "h.csv"
    done, rows = complete(folder), len(History.load(history)) if history.exists() else 0
    number = WAYS[name][0] if WAYS[name][1] else 0
    may_be = {0, STATUS[name.split()[0]], -number}
    if name.endswith("twice"):  # torch says it of a file that it was writing
        may_be.add(2)
    least = max(0, done - 1) // EVERY * EVERY if name.endswith("twice") else done
    least = done // EVERY * EVERY - EVERY if killed else least
    left = [path.name for path in folder.rglob(".*") if path.name != ".lock"]
    found = {
        f"exit status {status}": status not in may_be,
        f"{done - rows} rollouts lost from the history": not killed and rows < done,
        "no policy": not killed and not (folder / "p/config.json").exists(),
        f"the checkpoint lacks {least - saved(folder)}": saved(folder) < least,
        f"left: {left}": not killed and bool(left),
    }
    return [fault for fault, there in found.items() if there]


def main(minutes: float = 60.0, runs: int = 100, seed: int = 0) -> None:
    chance, began = random.Random(seed), time.monotonic()
    warnings.simplefilter("ignore")
    wrong, counts = [], Counter()
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, "whole")
        whole.mkdir()
        ended(whole)
        rewards = History.load(whole / "h.csv")["reward"]
        for n in range(runs):
            if time.monotonic() - began > 60 * minutes:
                break
            folder = Path(scratch, str(n))
            folder.mkdir()
            name = [*WAYS, chance.choice([*WAYS])][min(n, len(WAYS))]
            when, moment = chance.randrange(ROLLOUTS - 1), chance.uniform(0, 0.4)
            found = lost(name, ended(folder, WAYS[name], when, moment), folder)
            if saved(folder) and chance.random() < 0.25:
                ended(folder, resume=True)
                if History.load(folder / "h.csv")["reward"] != rewards:
                    found.append("gone on from its checkpoint, it is another run")
                counts["gone on from"] += 1
            counts[name] += 1
            wrong += [f"{name}, run {n}, after rollout {when}: {f}" for f in found]
    print(dict(counts), *wrong, f"{len(wrong)} faults", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    tyro.cli(main)
