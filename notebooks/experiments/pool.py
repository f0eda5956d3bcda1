"""Make runs that are to be stored, one at a time or in several processes."""

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import torch
from tqdm.auto import tqdm

from experiments import store
from experiments.store import provenance
from refimpl.history import History
from refimpl.hooks import StalenessError
from refimpl.loop import train


def trained(algorithm, **given) -> History:
    """`train`, silent. A `StalenessError` is stored in `History.ended`, not raised."""
    with warnings.catch_warnings(action="ignore"):  # the store records `ended`
        try:
            return train(algorithm, progress=False, **given)
        except StalenessError as error:  # for example, no reward was ever above 0
            error.history.ended = error
            return error.history


def about(history: History, begun: float, weights: str = "") -> dict[str, str]:
    """What a store records about a run in addition to its rows.

    `begun`: `time.perf_counter()` at its start. `weights`: the SHA-256 of the weights
    that it began from.
    """
    return {
        **provenance(),
        "weights": weights,
        "seconds": f"{time.perf_counter() - begun:.1f}",
        "ended": str(history.ended or ""),
    }


def finished(
    work: Callable, jobs: Sequence[tuple], workers: int
) -> Iterator[tuple[tuple, tuple]]:
    """Yield each job with `work(*job)` once it is done.

    One worker is this process. Several workers share the cores among their threads.
    """
    if workers == 1:
        yield from ((job, work(*job)) for job in jobs)
        return
    threads = max(1, (os.cpu_count() or 1) // workers)
    with ProcessPoolExecutor(
        workers, get_context("spawn"), torch.set_num_threads, (threads,)
    ) as pool:
        waiting = {pool.submit(work, *job): job for job in jobs}
        yield from ((waiting[done], done.result()) for done in as_completed(waiting))


def fill(
    file: Path,
    columns: Sequence[str],
    planned: Iterable[tuple],
    spec: Callable,
    run: Callable,
    workers: int,
) -> None:
    """Make the planned runs that the store lacks, and add each as it finishes."""
    with store.Store(file, columns) as opened:
        have = store.done(file)
        jobs = [job for job in planned if store.key(spec(*job)) not in have]
        for job, made in tqdm(finished(run, jobs, workers), total=len(jobs)):
            opened.add(spec(*job), *made)
