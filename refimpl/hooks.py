"""Hooks: functions f(run, step) that `train` calls after every rollout, and its end.

However a run ends, what was complete is kept: `train` hands it back with the reason in
`History.ended`, or, where the reason is a fault of the program's, as its `history`.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tqdm.auto import tqdm

from refimpl import checkpoint
from refimpl.checks import UserError
from refimpl.collect import DynamicSamplingError
from refimpl.evaluation import mean_at, pass_at, scores
from refimpl.history import History
from refimpl.models import precision
from refimpl.run import Run


class StalenessError(RuntimeError):
    """The ratio never left 1, so no clip or gate was tested. `history` is the run's."""

    history: History


class Interrupted(KeyboardInterrupt):
    """A signal ended the run; the status of a command is 128 + `number`."""

    def __init__(self, reason: str, number: int = signal.SIGINT):
        super().__init__(reason)
        self.number = number


def evaluate(run: Run, step: int) -> None:
    """Held-out accuracy, every `eval_every` rollouts and after the last."""
    config, row = run.config, run.history.rows[-1]
    several = config.eval_samples > 1
    row |= dict.fromkeys(["accuracy", "accuracy/pass"] if several else ["accuracy"])
    if (step + 1) % config.eval_every and not run.last(step):
        return
    with precision(run.model, config.dtype):
        answers = scores(
            run.model,
            run.tokenizer,
            run.task,
            problems=config.eval_problems,
            samples=config.eval_samples,
            **config.sampling,
        )
    row["accuracy"] = mean_at(answers)
    if several:
        row["accuracy/pass"] = pass_at(answers, config.eval_samples)


@contextlib.contextmanager
def bar(run: Run, progress: bool) -> Iterator[Callable[[Run, int], None]]:
    """A progress bar, with the last rollout's mean reward, while somebody reads it."""
    total, done = run.config.rollouts, len(run.history)
    nobody_reads = contextlib.suppress(OSError)  # a closed pipe or terminal
    shown = tqdm(disable=True)
    with nobody_reads:
        name = run.algorithm.name
        shown = tqdm(total=total, initial=done, desc=name, disable=not progress)

    def show(run: Run, step: int) -> None:
        reward = run.history.rows[-1]["reward"]
        with nobody_reads:
            shown.set_postfix(reward=f"{reward:.2f}", refresh=False)
            shown.update()

    try:
        yield show
    finally:
        with nobody_reads:
            shown.close()


def last_hooks(folder: Path | None) -> list[Callable[[Run, int], None]]:
    """Save, stop after a signal, and look whether anything moved: in this order."""

    def save(run: Run, step: int) -> None:
        if run.last(step) or (step + 1) % run.config.checkpoint_every == 0:
            checkpoint.save(folder, checkpoint.state(run))

    return [*([save] if folder is not None else []), stop, check_staleness]


def stop(run: Run, step: int) -> None:
    """End a run that a signal asked to end."""
    if run.stopping and step + 1 < run.config.rollouts:
        raise KeyboardInterrupt


def check_staleness(run: Run, step: int) -> None:
    """With K > 1 some ratio must have left 1 by more than rounding."""
    if step + 1 not in (5, run.config.rollouts):
        return
    noise = 1e-2 if run.config.dtype == "bfloat16" else 1e-4
    largest = max(run.history["ratio/max_deviation"])
    cut = min(run.history["completions/clipped_ratio"])
    if run.config.overlong_filtering and cut == 1:
        raise StalenessError(
            f"every response of {len(run.history)} rollouts was cut off at "
            f"max_new_tokens = {run.config.max_new_tokens}, and overlong_filtering "
            "leaves those out: nothing was trained on. Raise max_new_tokens, or switch "
            "the filter off"
        )
    if run.config.updates_per_rollout > 1 and largest < noise:
        raise StalenessError(
            f"after {len(run.history)} rollouts with K = "
            f"{run.config.updates_per_rollout} updates each, the largest |ratio − 1| "
            f"is {largest:.1e}: the policy does not move, or old log-probs are taken "
            "from the policy being trained. Check the rewards and the learning rate "
            "(chapter 11 goes from symptoms to causes)"
        )


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
            unsaved = keep(run, folder, reason)
            if not isinstance(reason, ENDS_A_RUN):
                run.history.ended = reason
                reason.history = run.history  # type: ignore[attr-defined]
                raise
            run.history.ended = early(run, reason, unsaved)


def keep(run: Run, folder: Path | None, reason: BaseException) -> str:
    """Save where that is of use; what went wrong with it.

    Not in the middle of the updates, which a run that goes on makes once more, not of
    weights that have diverged, and not if what ended the run is the saving, or somebody
    who will not wait for it.
    """
    hopeless = KeyboardInterrupt | checkpoint.CheckpointError | FloatingPointError
    if folder is not None and run.whole and not isinstance(reason, hopeless):
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
