"""Runs to be stored: one, kept as far as it came, and many side by side."""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import torch

from experiments.store import provenance
from refimpl.history import History
from refimpl.hooks import StalenessError
from refimpl.loop import train


def trained(algorithm, **given) -> History:
    """`train` without a word; a run in which nothing moved is handed back, too."""
    with warnings.catch_warnings(action="ignore"):  # `ended` is stored
        try:
            return train(algorithm, progress=False, **given)
        except StalenessError as error:  # nothing was ever paid, say
            error.history.ended = error
            return error.history


def about(history: History, begun: float, weights: str = "") -> dict[str, str]:
    """What a store wants to know of a run beside its rows.

    `begun`: perf_counter; `weights`: the SHA-256 of those that it began from.
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
    """Each job and `work(*job)`, as it is done; in this process if `workers` is 1.

    Workers have one thread each where there are as many of them as cores.
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
