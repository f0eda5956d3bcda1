"""A declared experiment: its runs, how each is made, and the store that they fill.

    class Rates(Experiment):
        name = "rates"
        columns = ("step", "reward", "accuracy")

        def jobs(self):
            for start in range(10, 15):
                yield {"learning_rate": 2e-4, "start": start}

        def config(self, job):
            return TrainConfig(learning_rate=job["learning_rate"], seed=job["start"])

    Rates().fill()  # makes the runs that the store lacks

A job is one run as plain values, which are part of its name in the store. Everything
else follows from the job.
"""

import itertools
import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import tyro
from tqdm.auto import tqdm

from experiments import store
from experiments.behaviour import behaviour
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.config import TrainConfig
from refimpl.history import History, StalenessError
from refimpl.loop import train
from refimpl.sft import WarmStart, shipped, warm_start, weights_digest
from refimpl.validation import UserError

Job = dict[str, Any]
Made = tuple[list[dict[str, Any]], dict[str, str]]
"""A run's rows, and what else the store records about it."""


class Experiment:
    """Runs that are declared before they are made, and stored under one name."""

    name: str
    """Part of each run's key, and the name of the store."""
    columns: Sequence[str]
    """The columns of a stored row."""

    @property
    def path(self) -> Path:
        """The store in the clone."""
        return store.DATA / self.name.replace(" ", "_")

    def jobs(self) -> Iterable[Job]:
        """Return all runs, in the order in which they are made."""
        raise NotImplementedError

    def config(self, job: Job) -> TrainConfig:
        """Return the settings of a run."""
        raise NotImplementedError

    def method(self, job: Job) -> Algorithm:
        """Return the method whose formula is part of a run's name."""
        return ALGORITHMS[job.get("method", "grpo")]

    def warm(self, job: Job) -> WarmStart:
        """Return the warm start of a run."""
        return WarmStart(seed=job["start"])

    def given(self, job: Job) -> dict[str, Any]:
        """Return the arguments of `train` for a run."""
        origin = self.warm(job)
        model, tokenizer, _ = warm_start(origin)
        named = {"algorithm": self.method(job), "config": self.config(job)}
        return named | {"model": model, "tokenizer": tokenizer, "task": origin.world}

    def make(self, job: Job) -> History:
        """Make a run."""
        return trained(**self.given(job))

    def weights(self, job: Job) -> str:
        """Return the SHA-256 of the weights that a run begins from."""
        return weights_digest(self.warm(job))

    def behaviour(self, job: Job) -> str:
        """Return a hash of the numbers that the run's method gives."""
        return behaviour(self.method(job), self.config(job))

    def facets(self, job: Job) -> dict[str, Any]:
        """Return the part of a run's name that is not in its settings."""
        return {**job, "begins": self.weights(job)}

    def spec(self, job: Job) -> dict[str, Any]:
        """Return a run's whole configuration as plain values, which name it."""
        named = {"experiment": self.name, **self.facets(job)}
        return named | asdict(self.config(job)) | {"behaviour": self.behaviour(job)}

    def key(self, job: Job) -> str:
        """Return the name of a run in the store."""
        return store.key(self.spec(job))

    def check(self, job: Job) -> None:
        """Raise `UserError` unless everybody can begin a run from these weights."""
        if not shipped(self.warm(job)):
            raise UserError(
                f"start {job['start']} of {job.get('world', 'sums')} is not part of "
                "this clone: nobody else has its weights, so its runs could not be "
                "compared with others"
            )

    def run(self, job: Job) -> Made:
        """Make a run, and note where, when and from which weights it was made."""
        begun = time.perf_counter()
        history = self.make(job)
        known = {"weights": self.weights(job), "ended": str(history.ended or "")}
        known["seconds"] = f"{time.perf_counter() - begun:.1f}"
        return history.rows, store.provenance() | known

    def fill(
        self,
        path: str | Path | None = None,
        jobs: Iterable[Job] | None = None,
        workers: int = 1,
        until: float = math.inf,
    ) -> None:
        """Make the runs that the store lacks, and add each as it finishes.

        No run begins after `until`, a time of `time.monotonic`.
        """
        path = path or self.path
        with store.Store(path, self.columns) as opened:
            have = store.done(path)
            asked = self.jobs() if jobs is None else jobs
            left = [job for job in asked if self.key(job) not in have]
            for job in left:
                self.check(job)
            made = finished(self, left, workers, until)
            for job, result in tqdm(made, total=len(left), desc=Path(path).name):
                opened.add(self.spec(job), *result)

    def table(self, *names: str) -> pd.DataFrame:
        """Return all stored rows, with these columns of their runs."""
        runs, rows = store.read(self.path)
        return rows.merge(runs[["run", *names]], on="run")


def trained(algorithm: Algorithm | str, **given: Any) -> History:
    """Call `train` silently. A `StalenessError` is stored in `History.ended`."""
    with warnings.catch_warnings(action="ignore"):  # the store records `ended`
        try:
            return train(algorithm, progress=False, **given)
        except StalenessError as error:  # for example, no reward was ever above 0
            error.history.ended = error
            return error.history


def finished(
    experiment: Experiment, jobs: Sequence[Job], workers: int, until: float = math.inf
) -> Iterator[tuple[Job, Made]]:
    """Yield each job with its run once it is done; no job begins after `until`.

    One worker is this process. Several workers share the cores among their threads.
    """
    if workers == 1:
        in_time = itertools.takewhile(lambda job: time.monotonic() < until, jobs)
        yield from ((job, experiment.run(job)) for job in in_time)
        return
    threads = max(1, (os.cpu_count() or 1) // workers)
    with ProcessPoolExecutor(
        workers, get_context("spawn"), torch.set_num_threads, (threads,)
    ) as pool:
        waiting = {pool.submit(experiment.run, job): job for job in jobs}
        for done in as_completed(waiting):
            if time.monotonic() >= until:
                for future in waiting:
                    future.cancel()  # has no effect on those that are running
            if not done.cancelled():
                yield waiting[done], done.result()


def command(experiment: Experiment, report: Callable[[], str]) -> None:
    """Run `python -m experiments.NAME`: make what is missing, and print the report."""

    def main(workers: int = 1) -> None:
        experiment.fill(workers=workers)
        print(report())

    tyro.cli(main)
