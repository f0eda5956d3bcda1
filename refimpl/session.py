"""What stands around the rollouts of a run: one thread, its hooks, and how it ends.

Ctrl-C, a signal or an error keeps all complete rollouts.
"""

import contextlib
import signal
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from refimpl.files import CheckpointError
from refimpl.models import one_thread
from refimpl.run import Run
from refimpl.validation import UserError


class Interrupted(KeyboardInterrupt):
    """A signal ended the run; the status of a command is 128 + `number`.

    After Ctrl-C it carries the `history` so far.
    """

    history: Any = None

    def __init__(self, reason: str, number: int = signal.SIGINT):
        super().__init__(reason)
        self.number = number


ENDS_A_RUN = (KeyboardInterrupt, FloatingPointError, CheckpointError, UserError)
"""Errors after which `train` returns the history, unless the user pressed Ctrl-C. A
`UserError` comes from a reward, a scorer or a task that fails in a later rollout, or
from dynamic sampling that finds no group."""


@contextlib.contextmanager
def session(run: Run, hooks: Collection[Callable]) -> Iterator[None]:
    """Enter `ending_early`, and the context manager `around` of each hook with one."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_thread(run.model))
        stack.enter_context(ending_early(run))
        for hook in hooks:
            if hasattr(hook, "around"):
                stack.enter_context(hook.around(run))
        yield


@contextlib.contextmanager
def ending_early(run: Run) -> Iterator[None]:
    """Keep all complete rollouts if a run ends early.

    Errors of `ENDS_A_RUN` are stored in `History.ended`, and a warning says them. Any
    other error, and Ctrl-C, is raised and carries the run's `history`: a loop over
    seeds must not go on with the next one. Before the first rollout is complete, every
    error is raised unchanged.
    """

    def request(number: int, _) -> None:
        """Finish the rollout first; a second Ctrl-C does not wait for it."""
        ending = run.history.ended is not None  # then only a moment is left
        if run.stop_signal and number == signal.SIGINT and not ending:
            raise KeyboardInterrupt
        run.stop_signal = run.stop_signal or number

    with signals_to(request):
        try:
            yield
        except BaseException as error:
            if not run.history.rows:
                raise
            run.history.ended = error
            run.optimizer.zero_grad(set_to_none=True)  # an update may be cut short
            if not isinstance(error, ENDS_A_RUN):
                error.history = run.history  # type: ignore[attr-defined]
                raise
            run.history.ended = ended = with_progress(run, error)
            if isinstance(ended, Interrupted) and ended.number == signal.SIGINT:
                ended.history = run.history
                ended.add_note("sys.last_value.history holds the history so far")
                raise ended from None
            # Up to the caller of `train`, past two context managers and two decorators.
            warnings.warn(str(run.history.ended), stacklevel=9)


def with_progress(run: Run, error: BaseException) -> BaseException:
    """Make an error of the same class whose message also has the run's progress."""
    kind: Any = type(error)
    why = str(error)
    if isinstance(error, KeyboardInterrupt):
        number = run.stop_signal or signal.SIGINT
        kind = partial(Interrupted, number=number)
        why = signal.Signals(number).name
        if number == signal.SIGINT:
            why = "interrupted"
    done = f"stopped after {len(run.history)} of {run.config.rollouts} rollouts"
    notes = getattr(error, "__notes__", [])  # of a checkpoint that could not be written
    ended = kind("; ".join([f"{done}: {why}", *notes]))
    ended.__cause__ = error
    return ended


@contextlib.contextmanager
def signals_to(handler: Callable) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP by `handler` inside the block."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # others get no signals
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
            number = getattr(signal, name, None)
            if number and signal.getsignal(number) is not signal.SIG_IGN:  # nohup's
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
