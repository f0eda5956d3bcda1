"""A run from the command line: whatever ends it, what it has is kept, and summed up."""

import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from refimpl import checkpoint, files
from refimpl.algorithms import Algorithm
from refimpl.checkpoint import CheckpointError
from refimpl.collect import DynamicSamplingError
from refimpl.config import TrainConfig
from refimpl.history import History
from refimpl.hooks import Interrupted, signals_to
from refimpl.train import train as run_training


class Outputs(NamedTuple):
    """Where to write; None is not asked for."""

    history: Path | None
    samples: Path | None
    save: Path | None
    save_policy: Callable | None
    """f(model, tokenizer, folder) in place of `save_pretrained`"""


def run(
    method: Algorithm,
    config: TrainConfig,
    outputs: Outputs,
    checkpoint_dir: Path | None,
    start: dict[str, Any],
) -> int:
    """Train as `start` says, and write the outputs: the command's exit status."""

    def keep(result: History) -> None:
        """Write what is asked for, then the summary; each though another fails."""
        with ExitStack() as todo:  # the last comes first
            todo.callback(summarise, result, config, checkpoint_dir)
            if outputs.save is not None:
                save = outputs.save_policy or save_pretrained
                fill = partial(save, result.model, start["tokenizer"])
                todo.callback(files.write_folder, outputs.save, fill)
            if outputs.samples is not None:
                todo.callback(result.samples_to_jsonl, outputs.samples)
            if outputs.history is not None:
                todo.callback(result.to_csv, outputs.history)

    complete: list[int] = []
    late: list[int] = []

    def signalled(number: int, _) -> None:
        """Once a rollout is complete, nothing comes between it and its outputs."""
        if not complete:
            raise Interrupted(signal.Signals(number).name, number)
        late.append(number)

    with signals_to(signalled):  # in a run, its own handler
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *_: print(
                    f"warning: {message}", file=sys.stderr
                )
                result = run_training(
                    method,
                    config=config,
                    **start,
                    hooks=[lambda run, step: complete.append(step)],
                    checkpoint_dir=checkpoint_dir,
                )
        except BaseException as error:
            if isinstance(so_far := getattr(error, "history", None), History):
                keep(so_far)
            raise
        keep(result)
    if isinstance(result.ended, Interrupted):
        return 128 + result.ended.number
    if late:  # it has waited for the outputs
        return 128 + late[0]
    finished = result.ended is None or isinstance(result.ended, DynamicSamplingError)
    return 0 if finished else 2  # 0: as far as it could be trained


def save_pretrained(model, tokenizer, folder: Path) -> None:
    """The policy and its tokenizer, as `from_pretrained` reads them."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def summarise(result: History, config: TrainConfig, folder: Path | None) -> None:
    """How to go on, if it ended early, and the line that holds the accuracy."""
    can_go_on = isinstance(result.ended, KeyboardInterrupt | CheckpointError)
    if can_go_on and folder and (folder / checkpoint.NAME).exists():
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
