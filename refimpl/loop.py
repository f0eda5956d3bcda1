"""Training: K updates on every rollout, one row of history for each.

    collect    problems → prompts → rollout → rewards → advantages → batch  (collect.py)
    update     K times: log-probs → loss → gradient → step                  (here)
    hooks      evaluate, print, look whether anything moved                 (hooks.py)
    checkpoint save, and hand back what there is, however it ends   (checkpoint.py)

Every random choice is drawn from a generator seeded by (run seed, rollout, purpose),
so a run can be resumed anywhere and the global generators are never touched.
"""

import time
import warnings
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from refimpl import seeds
from refimpl.algorithms import Algorithm
from refimpl.checkpoint import Checkpoint, ending_early
from refimpl.collect import collect
from refimpl.config import TrainConfig
from refimpl.descent import check_finite, descend
from refimpl.history import History, Meter
from refimpl.hooks import bar, check_staleness, evaluate
from refimpl.logprobs import log_probs as teacher_forced
from refimpl.loss_terms import Given
from refimpl.metrics import joined
from refimpl.models import Model, one_thread
from refimpl.prepare import prepare
from refimpl.rollout import Batch
from refimpl.run import Run
from refimpl.validation import guarded


@guarded
@torch.inference_mode(False)  # with gradients, wherever it is called
def train(
    algorithm: str | Algorithm,
    *,
    config: TrainConfig | None = None,
    model: Model | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    task=None,
    reward: Callable | None = None,
    log_probs: Callable = teacher_forced,
    hooks: Collection[Callable] = (),
    checkpoint_dir: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> History:
    """Train a copy of `model` with `algorithm`; the history holds the trained copy.

    **Arguments:**

    - `algorithm`: a name of `ALGORITHMS`, or an `Algorithm` of your own.
    - `model`, `tokenizer`: any causal LM; default: the warm-started tiny model.
      Weights that need no gradient (frozen layers, a LoRA's base) stay as they are,
      and are the trained model's too, in the same memory.
    - `task`: see `refimpl.tasks`; default: the arithmetic world. `reward`: a function
      with TRL's signature in place of the task's own.
    - `log_probs`: f(model, rollout, temperature) in place of `logprobs.log_probs`, as
      `refimpl.pretrained.logprobs.log_probs`, which takes less memory and reads a
      prompt once.
    - `hooks`: functions f(run, step), called after every rollout.
    - `checkpoint_dir`: where to save every `checkpoint_every` rollouts; `resume`
      continues from there, on a CPU bit for bit; `overwrite` starts anew.

    **A run that ends early** returns what it has, with the reason in `History.ended`
    and in a warning: after Ctrl-C, SIGTERM or SIGHUP (which finish the rollout, save,
    and stop; a second Ctrl-C stops at once), when dynamic sampling finds nothing left
    to learn, when a gradient or a weight is no longer finite, when a reward, a scorer
    or a task fails, or when a checkpoint cannot be written.

    Raises `UserError` on bad input before any work; what ended it, if a run ends before
    its first rollout is complete; `StalenessError` if the largest |ratio − 1| stays at
    rounding noise although K > 1. This, and any other error of a later rollout, carries
    the run's `history`.
    """
    with Checkpoint(checkpoint_dir, resume, overwrite) as checkpoint:
        run = prepare(algorithm, config, model, tokenizer, task, reward, log_probs)
        run.progress = progress
        checkpoint.restore(run)
        with (
            one_thread(run.model),
            ending_early(run, checkpoint),
            bar(run, progress) as show,
        ):
            own = map(torch.enable_grad(), hooks)  # one may switch gradients off
            save = checkpoint.save_when_due
            loop(run, [evaluate, *own, show, save, check_staleness])
    if run.history.ended is not None:
        warnings.warn(str(run.history.ended), stacklevel=4)  # two decorators between
    return run.history


def loop(run: Run, hooks: Collection[Callable]) -> None:
    """Rollout after rollout, with K updates on each."""
    for step in range(len(run.history), run.config.rollouts):
        began = time.perf_counter()
        run.batch, described = collect(run, step)
        run.complete = False
        measured = updates(run, run.batch, step)
        run.history.add(step, joined(described, measured), time.perf_counter() - began)
        run.complete = True
        for hook in hooks:
            hook(run, step)


def updates(run: Run, batch: Batch, step: int) -> dict[str, float]:
    """K optimiser steps over shuffled mini-batches of whole groups; their metrics.

    Then the sampler gets the new weights.
    """
    config, meter = run.config, Meter()
    shuffle = seeds.generator(seeds.seed_for(config.seed, step, "shuffle"))
    for mini in batch.minibatches(config.minibatches, config.epochs, shuffle):
        update(run, mini, meter)
    check_finite(run.model)
    run.sampler.sync()
    return meter.read()


def update(run: Run, mini: Batch, meter: Meter) -> None:
    """One optimiser step on a mini-batch, its gradient summed over micro-batches.

    Rows without a gradient are left out of the passes, never out of the weights.
    """
    weight = run.weight(mini)  # made once for the mini-batch
    rows = mini.rows_with_gradient(run.acts_everywhere)
    size = run.config.micro_batch_size
    for part, w in mini.micro_batches(weight, rows, size, run.by_group):
        reading = run.read(part.rollout)
        given = Given(reading.logp, part.old_logp, w, {})
        for correct in run.corrections:
            given = correct(part, reading, given)
        loss, metrics = run.algorithm.loss(
            given.logp,
            given.old_logp,
            part.advantages,
            part.mask,
            given.weight,
            **run.hyperparameters,
        )
        metrics |= given.metrics
        for term in run.terms:
            added, measured = term(part, reading, w)
            loss, metrics = loss + added, metrics | measured
        loss.backward()
        meter.add(part, reading.logp, loss, metrics)
    meter.end_update(descend(run, meter))
