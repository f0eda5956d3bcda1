"""Hooks: functions f(run, step) that `train` calls after every rollout, and its end."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tqdm.auto import tqdm

from refimpl import checkpoint
from refimpl.collect import DynamicSamplingError
from refimpl.evaluation import mean_at, pass_at, scores
from refimpl.history import History
from refimpl.models import precision
from refimpl.run import Run


class StalenessError(RuntimeError):
    """The ratio never left 1, so no clip or gate was tested. `history` is the run's."""

    history: History


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
    """A progress bar, with the last rollout's mean reward."""
    total, done = run.config.rollouts, len(run.history)
    with tqdm(
        total=total, initial=done, desc=run.algorithm.name, disable=not progress
    ) as shown:

        def show(run: Run, step: int) -> None:
            reward = run.history.rows[-1]["reward"]
            shown.set_postfix(reward=f"{reward:.2f}", refresh=False)
            shown.update()

        yield show


def last_hooks(folder: str | Path | None) -> list[Callable[[Run, int], None]]:
    """Save, stop after Ctrl-C, and look whether anything moved: in this order."""

    def save(run: Run, step: int) -> None:
        if run.last(step) or (step + 1) % run.config.checkpoint_every == 0:
            checkpoint.save(folder, checkpoint.state(run))

    return [*([save] if folder is not None else []), stop, check_staleness]


def stop(run: Run, step: int) -> None:
    """End a run that Ctrl-C asked to end."""
    if run.stopping.is_set() and step + 1 < run.config.rollouts:
        raise KeyboardInterrupt


def check_staleness(run: Run, step: int) -> None:
    """With K > 1 some ratio must have left 1 by more than rounding."""
    if step + 1 not in (5, run.config.rollouts):
        return
    noise = 1e-2 if run.config.dtype == "bfloat16" else 1e-4
    largest = max(run.history["ratio/max_deviation"])
    if run.config.updates_per_rollout > 1 and largest < noise:
        error = StalenessError(
            f"after {len(run.history)} rollouts with K = "
            f"{run.config.updates_per_rollout} updates each, the largest |ratio − 1| "
            f"is {largest:.1e}: the policy does not move, or old log-probs are taken "
            "from the policy being trained. Check the rewards and the learning rate "
            "(chapter 11 goes from symptoms to causes)"
        )
        error.history = run.history
        raise error


ENDS_A_RUN = (
    KeyboardInterrupt,
    DynamicSamplingError,
    FloatingPointError,
    checkpoint.CheckpointError,
)


@contextlib.contextmanager
def end_early(run: Run) -> Iterator[None]:
    """What ends a run early is noted in its history; raised if there is none yet.

    In here the first Ctrl-C stops the run after this rollout; a second one at once.
    """

    def request(*_) -> None:
        if run.stopping.is_set():
            raise KeyboardInterrupt
        run.stopping.set()

    # Only the main thread can catch signals.
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, request) if main else None
    try:
        yield
    except ENDS_A_RUN as reason:
        if not run.history.rows:
            raise
        run.optimizer.zero_grad(set_to_none=True)  # an update may have been cut short
        why = "interrupted" if isinstance(reason, KeyboardInterrupt) else str(reason)
        run.history.ended = type(reason)(
            f"stopped after {len(run.history)} of {run.config.rollouts} rollouts: {why}"
        )
    finally:
        if main:
            signal.signal(signal.SIGINT, before)
