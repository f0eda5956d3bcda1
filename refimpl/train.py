"""Training: K updates on every rollout, one row of history for each.

    collect    problems → prompts → rollout → rewards → advantages → batch  (collect.py)
    update     K times: log-probs → loss → gradient → step                  (here)
    hooks      evaluate, print, save                                        (hooks.py)

Every random choice is drawn from a generator seeded by (run seed, rollout, purpose),
so a run can be resumed anywhere and the global generators are never touched.
"""

import math
import time
import warnings
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refimpl import checkpoint, seeds
from refimpl.algorithms import Algorithm
from refimpl.batch import Batch
from refimpl.checks import guarded
from refimpl.collect import collect
from refimpl.config import TrainConfig
from refimpl.history import History, Meter
from refimpl.hooks import bar, end_early, evaluate, last_hooks
from refimpl.models import Model, one_thread
from refimpl.prepare import prepare
from refimpl.run import Run
from refimpl.scoring import log_probs as teacher_forced
from refimpl.terms import Given

MAX_GRAD_NORM = 1.0
"""The gradient's norm is cut off here, the critic's by itself."""


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
    - `log_probs`: f(model, rollout, temperature) in place of `scoring.log_probs`, as
      `refimpl.real.scoring.log_probs`, which takes less memory and reads a prompt once.
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
    with checkpoint.folder(checkpoint_dir, resume, overwrite) as (folder, saved):
        run = prepare(algorithm, config, model, tokenizer, task, reward, log_probs)
        run.progress = progress
        if saved is not None:
            checkpoint.restore(run, saved)
        with one_thread(run.model), end_early(run, folder), bar(run, progress) as show:
            own = map(torch.enable_grad(), hooks)  # one may switch gradients off
            loop(run, [evaluate, *own, show, *last_hooks(folder)])
    if run.history.ended is not None:
        warnings.warn(str(run.history.ended), stacklevel=4)  # two decorators between
    return run.history


def loop(run: Run, hooks: Collection[Callable]) -> None:
    """Rollout after rollout, with K updates on each."""
    for step in range(len(run.history), run.config.rollouts):
        began = time.perf_counter()
        run.batch, described = collect(run, step)
        run.whole = False
        measured = updates(run, run.batch, step)
        run.history.add(step, described | measured, time.perf_counter() - began)
        run.whole = True
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


def check_finite(model: Model) -> None:
    """The gradients were: what a step made of them may not be."""
    if not torch.nn.utils.get_total_norm(model.parameters()).isfinite():
        raise FloatingPointError(
            "the weights are no longer finite after the last update: training has "
            "diverged; lower the learning rate"
        )


def update(run: Run, mini: Batch, meter: Meter) -> None:
    """One optimiser step on a mini-batch, its gradient summed over micro-batches.

    Rows without a gradient are left out of the passes, never out of the weights.
    """
    weight = run.weight(mini)  # made once for the mini-batch
    rows = mini.rows_with_gradient(run.acts_everywhere)
    size, whole_groups = run.config.micro_batch_size, run.whole_groups
    for part, w in mini.micro_batches(weight, rows, size, whole_groups):
        scores = run.scores(part.rollout)
        given = Given(scores.logp, part.old_logp, w, {})
        for correct in run.corrections:
            given = correct(part, scores, given)
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
            added, measured = term(part, scores, w)
            loss, metrics = loss + added, metrics | measured
        loss.backward()
        meter.add(part, scores.logp, loss, metrics)
    meter.end_update(descend(run, meter))


def descend(run: Run, meter: Meter) -> Float[Tensor, ""]:
    """Clip the gradient's norm, step, and forget it; the norm before clipping."""
    norms = {}
    for name, model in (("policy", run.model), ("critic", run.critic)):
        if model is not None:
            every = model.parameters()
            norms[name] = torch.nn.utils.clip_grad_norm_(every, MAX_GRAD_NORM)
    for name, norm in zip(norms, torch.stack([*norms.values()]).tolist()):
        if not math.isfinite(norm):  # the weights are those of the last good step
            done = len(run.history) * run.config.updates_per_rollout
            raise FloatingPointError(
                f"update {done + len(meter.updates) + 1}: the norm of the {name}'s "
                f"gradient is {norm}, training has diverged; lower the learning rate, "
                "or clip ratios more tightly (chapter 11 goes from symptoms to causes)"
            )
    run.optimizer.step()
    run.optimizer.zero_grad()
    return norms["policy"]
