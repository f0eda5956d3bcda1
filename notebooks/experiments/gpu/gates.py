"""One-sided or two-sided gates on a pretrained model, declared before the first run.

    cd notebooks
    ../.venv/bin/python -m experiments gates --device cuda --minutes 50

**The question.** With sixteen updates per rollout, does a gate that also closes on the
way back cost a pretrained model its skill, as it does models of 0.1 M parameters
(`finding`)? Three seeds of one rate could not say (chapter 13).

**The runs.** SmolLM2-135M-Instruct, all weights trained by Adam, on sums and on the
greatest common divisor, both from reasoning-gym. Seven methods, three learning rates an
octave apart, K = 16 and K = 4, five seeds: 420 runs. A seed draws problems, answers and
shuffles; the weights at the start are always the same. Runs of one seed share their
first rollout, so methods are compared in pairs.

**The outcome.** The *area*, as in `finding`: the mean reward of all rollouts, averaged
over the three rates. Rollouts that a run lacks because it ended early count as 0. An
effect is the mean of the seeds' differences, one side minus two, with Student's t over
seeds; 0.03 matters.

**What would refute the finding here.** With K = 16 both pairs, hard and soft, are *none
that matters* or below on both tasks. If only the rates near breaking differ, that is
what the finding says; if nothing breaks at any of the three rates, it is not tested.

**The order** is that in which runs decide most. A task, K and a set of methods form a
block; K = 16 and the two pairs come first. Within a block each seed is finished before
the next, the middle rate first, so that an early end costs seeds and not pairs. A block
counts only the seeds that have all of their runs.
"""

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import store
from experiments.arms import ARMS
from experiments.experiment import Experiment, Job
from experiments.gpu import captured
from experiments.real import GENTLE, JUDGED, MODEL, SYSTEM, TASKS, Real
from experiments.statistics import Estimate, estimate
from refimpl.algorithms import Algorithm
from refimpl.config import TrainConfig
from refimpl.pretrained import fast
from refimpl.pretrained.chat import Chat
from refimpl.pretrained.gym import ReasoningGym
from refimpl.pretrained.loading import load
from refimpl.pretrained.logprobs import log_probs
from refimpl.validation import Positive, guarded

PAIRS = {
    "hard": ("GRPO", "two-sided clip"),
    "soft, τ = 8.8": ("one-sided 8.8", "SAPO 8.8"),
}
"""Pairs of gates, with the one-sided gate first."""
OTHERS = ("SAPO 1.0", "GSPO 3e-4", "CISPO 5")
METHODS = (*itertools.chain(*PAIRS.values()), *OTHERS)
RATES = {16: (2e-5, 4e-5, 1e-5), 4: (4e-5, 8e-5, 2e-5)}
"""By K, in the order of the runs: the middle rate, the higher and the lower one."""
SEEDS = 5
SMALL = {"max_numbers": 2, "max_value": 10}
WORLDS = {
    "sums": (TASKS["sums"], 12),
    "gcd": (lambda: ReasoningGym("gcd", **JUDGED, **SMALL), 24),
}
"""A task, and the limit of its answers in tokens."""
BASE = replace(
    GENTLE,
    prompts_per_rollout=16,
    minibatches=4,
    micro_batch_size=64,
    eval_every=24,
    eval_problems=64,
)


class Gates(Real):
    """A run per method, task, K, rate and seed. `changed` settings make it smaller."""

    name = "gates"
    columns = (
        *"step reward entropy completions/mean_length".split(),
        *"completions/clipped_ratio grad_norm clip_ratio/region_mean".split(),
        *"log_ratio/q01 log_ratio/q99 ratio/max_deviation accuracy step_time".split(),
    )

    def __init__(self, device: str = "cuda", **changed: Any):
        self.changed = {"device": device, **changed}

    def jobs(self) -> Iterator[Job]:
        pairs = METHODS[: -len(OTHERS)]
        blocks = [(K, methods) for K in (16, 4) for methods in (pairs, OTHERS)]
        for K, methods in blocks:
            for task, seed, rate in itertools.product(WORLDS, range(SEEDS), RATES[K]):
                for name in methods:
                    named = {"arm": name, "task": task, "updates": K, "rate": rate}
                    yield {**named, "seed": seed}

    def config(self, job: Job) -> TrainConfig:
        _, settings = ARMS[job["arm"]].build()
        settings |= {"seed": job["seed"], "learning_rate": job["rate"]}
        settings["epochs"] = job["updates"] // BASE.minibatches
        settings["max_new_tokens"] = WORLDS[job["task"]][1]
        return replace(BASE, **settings, **self.changed)

    def method(self, job: Job) -> Algorithm:
        return ARMS[job["arm"]].build()[0]

    def facets(self, job: Job) -> dict[str, Any]:
        problems = repr(WORLDS[job["task"]][0]())
        known = {"problems": problems, "model": MODEL, "system": SYSTEM}
        return job | known | {"begins": self.weights(job)}

    def given(self, job: Job) -> dict[str, Any]:
        fast.use()
        captured.use()  # where the model is on a GPU
        model, tokenizer = load(MODEL)
        task = Chat(WORLDS[job["task"]][0](), tokenizer, SYSTEM)
        named = {"algorithm": self.method(job), "config": self.config(job)}
        named |= {"model": model, "tokenizer": tokenizer, "task": task}
        return named | {"log_probs": log_probs}

    make = Experiment.make


def areas(path: str | Path | None = None) -> pd.Series:
    """Return the mean reward of each stored run, by method, task, K, rate and seed."""
    runs, rows = store.read(path or Gates().path)
    total = rows.groupby("run")["reward"].sum()
    named = ["arm", "task", "updates", "rate", "seed"]
    mean = runs["run"].map(total) / runs["rollouts"]
    return mean.set_axis(pd.MultiIndex.from_frame(runs[named]))


def compared(areas: pd.Series, one: str, two: str, task: str, K: int) -> Estimate:
    """Estimate the area of `one` minus that of `two`, over seeds that have all runs.

    Raises `UserError` if no seed has all of them.
    """
    table = areas.xs((task, K), level=("task", "updates")).unstack("rate")
    apart = (table.loc[one] - table.loc[two]).reindex(columns=RATES[K])
    complete = apart.mean(axis=1, skipna=False).dropna()
    return estimate({seed: [value] for seed, value in complete.items()})


@guarded
def gates(
    device: str = "cuda",
    minutes: Positive = 50.0,
    workers: int = 1,
    out: Path = store.DATA / "gates",
) -> int:
    """Compare one-sided and two-sided gates on SmolLM2.

    Needs the model of `python -m refimpl fetch smollm2`.

    Args:
        device: cuda, or another device of torch.
        minutes: time after which no run begins; runs that have begun are finished.
        workers: runs at the same time, each in its own process.
        out: path and name of the store: OUT.runs.csv.xz and OUT.rows.csv.xz. Runs in it
            are not made again.
    """
    until = time.monotonic() + 60 * minutes
    Gates(device).fill(out, workers=workers, until=until)
    known = areas(out)
    for task, K, (name, pair) in itertools.product(WORLDS, RATES, PAIRS.items()):
        try:
            found = compared(known, *pair, task, K)
        except (KeyError, ValueError):
            print(f"{task}, K = {K}, {name}: no seed has all of its runs yet")
            continue
        between = f"{found.low:+.3f} to {found.high:+.3f}, {found.starts} seeds"
        print(f"{task}, K = {K}, {name}: {found.effect:+.3f} ({between})")
    return 0
