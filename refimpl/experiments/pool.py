"""Runs side by side, one thread each where there are as many workers as cores."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import torch


def finished(
    work: Callable, jobs: Sequence[tuple], workers: int
) -> Iterator[tuple[tuple, tuple]]:
    """Each job and `work(*job)`, as it is done; in this process if `workers` is 1."""
    if workers == 1:
        yield from ((job, work(*job)) for job in jobs)
        return
    threads = max(1, (os.cpu_count() or 1) // workers)
    with ProcessPoolExecutor(
        workers, get_context("spawn"), torch.set_num_threads, (threads,)
    ) as pool:
        waiting = {pool.submit(work, *job): job for job in jobs}
        yield from ((waiting[done], done.result()) for done in as_completed(waiting))
