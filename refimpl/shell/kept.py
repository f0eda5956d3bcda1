"""A run from the command line: whatever ends it, what it has is kept, and summed up."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from refimpl.algorithms import Algorithm
from refimpl.config import TrainConfig
from refimpl.history import History
from refimpl.keep import checkpoint, files
from refimpl.keep.checkpoint import CheckpointError
from refimpl.keep.ending import Interrupted, signals_to
from refimpl.keep.histories import samples_to_jsonl, to_csv
from refimpl.loop import train as run_training
from refimpl.responses import DynamicSamplingError
from refimpl.validation import printable

PATIENCE = 1.0
"""Seconds after which another signal is another request."""


class Outputs(NamedTuple):
    """Where to write; None is not asked for."""

    history: str | Path | None
    samples: str | Path | None
    save: str | Path | None

    def folders(self) -> list[str | Path | None]:
        """Those that are made, if need be."""
        above = [os.path.dirname(file or "") for file in (self.history, self.samples)]
        return [*above, self.save]

    def tried(self) -> "Outputs":
        """These, absolute; raises `UserError` if one cannot be written to."""
        history, samples, save = self
        if history is not None:
            history = files.writable_file(history, "the history")
        if samples is not None:
            samples = files.writable_file(samples, "the samples")
        if save is not None:
            save = files.writable_folder(save, "the policy")
            files.check_name(save, "the policy")
        return Outputs(history, samples, save)


def run(
    method: Algorithm,
    config: TrainConfig,
    start: dict[str, Any],
    outputs: Outputs,
    save_policy: Callable,
) -> int:
    """Train as `start` says, and write the outputs: the command's exit status."""

    def keep(result: History) -> None:
        """Write what is asked for, then the summary; each though another fails."""
        with ExitStack() as todo:  # the last comes first
            todo.callback(summarise, result, config, start["checkpoint_dir"])
            if outputs.save is not None:
                fill = partial(save_policy, result.model, start["tokenizer"])
                todo.callback(files.write_folder, outputs.save, fill)
            if outputs.samples is not None:
                todo.callback(samples_to_jsonl, result, outputs.samples)
            if outputs.history is not None:
                todo.callback(to_csv, result, outputs.history)

    complete: list[int] = []
    late: list[int] = []
    since: list[float] = []

    def signalled(number: int, _) -> None:
        """Once a rollout is complete, nothing comes between it and its outputs, but for
        a second signal: a pipe that nobody reads would be waited for without end.

        A terminal that closes sends several at once, which count as one.
        """
        again = bool(since) and time.monotonic() > since[0] + PATIENCE
        if not complete or again:
            raise Interrupted(signal.Signals(number).name, number)
        late.append(number)
        since.append(time.monotonic())

    with signals_to(signalled):  # in a run, its own handler
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_: print(
                    f"warning: {printable(str(message))}", file=sys.stderr
                )
                result = run_training(
                    method,
                    config=config,
                    **start,
                    hooks=[lambda run, step: complete.append(step)],
                )
        except BaseException as error:
            if isinstance(so_far := getattr(error, "history", None), History):
                keep(so_far)
            raise
        if isinstance(result.ended, Interrupted):
            late.append(result.ended.number)
            since.append(time.monotonic())
        keep(result)
    if late:  # a signal ended the run, or has waited for the outputs
        return 128 + late[0]
    finished = result.ended is None or isinstance(result.ended, DynamicSamplingError)
    return 0 if finished else 2  # 0: as far as it could be trained


def save_pretrained(model, tokenizer, folder: Path) -> None:
    """The policy and its tokenizer, as `from_pretrained` reads them."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def summarise(result: History, config: TrainConfig, folder: str | None) -> None:
    """How to go on, if it ended early, and the line that holds the accuracy."""
    can_go_on = isinstance(result.ended, KeyboardInterrupt | CheckpointError)
    if can_go_on and folder and (Path(folder) / checkpoint.NAME).exists():
        print(f"continue with --checkpoint-dir {folder} --resume", file=sys.stderr)
    last = result.rows[-1]
    measured = [a for a in result["accuracy"] if a == a]
    passed = last.get("accuracy/pass")
    print(
        f"{result.algorithm}  seed {config.seed}  rollouts {len(result)}  "
        f"seconds {sum(result['step_time']):.1f}  reward {last['reward']:.2f}  "
        + (f"accuracy {measured[-1]:.2f}" if measured else "accuracy not measured")
        + (f"  pass@{config.eval_samples} {passed:.2f}" if passed is not None else "")
    )
