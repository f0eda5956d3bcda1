"""However a run ends, what was complete is kept, and saved where that is of use.

`train` hands it back with the reason in `History.ended`, or, where the reason is a
fault of the program's, as its `history`.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from refimpl.keep import checkpoint
from refimpl.options import Run
from refimpl.responses import DynamicSamplingError
from refimpl.validation import UserError


@contextlib.contextmanager
def kept(path: str | Path | None, resume: bool, overwrite: bool) -> Iterator[Callable]:
    """The door of this room: takes the folder of the checkpoints, then keeps a run.

        with kept(folder, resume, overwrite) as keeping:
            run = prepare(...)
            with keeping(run) as keep:  # it goes on from what is saved
                loop(run, [..., keep])  # saves, and ends a run that a signal ends

    Raises `UserError` as `checkpoint.folder` and `checkpoint.restore` do.
    """
    with checkpoint.folder(path, resume, overwrite) as (folder, saved):

        @contextlib.contextmanager
        def keeping(run: Run) -> Iterator[Callable[[Run, int], None]]:
            if saved is not None:
                checkpoint.restore(run, saved)
            with end_early(run, folder):
                yield keep

        def keep(run: Run, step: int) -> None:
            due = run.last(step) or (step + 1) % run.config.checkpoint_every == 0
            if folder is not None and due:
                checkpoint.save(folder, checkpoint.state(run))
            if run.stopping and step + 1 < run.config.rollouts:
                raise KeyboardInterrupt

        yield keeping


class Interrupted(KeyboardInterrupt):
    """A signal ended the run; the status of a command is 128 + `number`."""

    def __init__(self, reason: str, number: int = signal.SIGINT):
        super().__init__(reason)
        self.number = number


ENDS_A_RUN = (
    KeyboardInterrupt,
    DynamicSamplingError,
    FloatingPointError,
    checkpoint.CheckpointError,
    UserError,  # of a reward, a scorer or a task that failed in a later rollout
)


@contextlib.contextmanager
def end_early(run: Run, folder: Path | None) -> Iterator[None]:
    """Keep what is complete when a run ends before its time, and note why.

    What `ENDS_A_RUN` ends here; anything else is raised, with the run's `history`, and
    so is whatever happens before a first rollout is complete. Where the weights are
    those after a whole rollout, they are saved in `folder`.
    """

    def request(number: int, _) -> None:
        """Ctrl-C, a request to end or a closed terminal: after this rollout."""
        if run.stopping and number == signal.SIGINT:  # a second Ctrl-C: at once
            raise KeyboardInterrupt
        run.stopping = run.stopping or number

    with signals_to(request):
        try:
            yield
        except BaseException as reason:
            if not run.history.rows:
                raise
            run.optimizer.zero_grad(set_to_none=True)  # an update may be cut short
            unsaved = save_last(run, folder, reason)
            if not isinstance(reason, ENDS_A_RUN):
                run.history.ended = reason
                reason.history = run.history  # type: ignore[attr-defined]
                raise
            run.history.ended = early(run, reason, unsaved)


def save_last(run: Run, folder: Path | None, reason: BaseException) -> str:
    """Save where that is of use; what went wrong with it.

    Not in the middle of the updates, which a run that goes on makes once more, not of
    weights that have diverged, and not if what ended the run is the saving, or somebody
    who will not wait for it.
    """
    hopeless = KeyboardInterrupt | checkpoint.CheckpointError | FloatingPointError
    if folder is not None and run.complete and not isinstance(reason, hopeless):
        try:
            checkpoint.save(folder, checkpoint.state(run))
        except checkpoint.CheckpointError as error:
            return f"; {error}"
    return ""


def early(run: Run, reason: BaseException, unsaved: str) -> BaseException:
    """The reason, which says how far the run has come."""
    kind, why = type(reason), str(reason)
    if isinstance(reason, KeyboardInterrupt):
        number = run.stopping or signal.SIGINT
        kind = Interrupted
        why = "interrupted" if number == signal.SIGINT else signal.Signals(number).name
    done = f"stopped after {len(run.history)} of {run.config.rollouts} rollouts"
    ended = kind(f"{done}: {why}{unsaved}")
    if isinstance(ended, Interrupted):
        ended.number = number
    ended.__cause__ = reason
    return ended


@contextlib.contextmanager
def signals_to(handler: Callable | signal.Handlers) -> Iterator[None]:
    """In here what asks a program to end goes to `handler`."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # others catch none
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
            number = getattr(signal, name, None)
            if number and signal.getsignal(number) is not signal.SIG_IGN:  # nohup's
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
