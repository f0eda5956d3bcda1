"""The training loop, from top to bottom: a run does what this page shows.

    train      rollout after rollout; the hooks after each
    collect    1. problems and responses · 2. rewards · 3. advantages
    updates    4. K updates, on shuffled mini-batches of whole groups
    update     one update: weight → log-probs → loss → gradient → step

No option has a branch here: `options.prepare` turns settings into the objects of a
`Run`, and a user hands in others. Every random choice comes from a generator seeded by
(run seed, rollout, purpose), so a run can be resumed after any rollout.
"""

import math
import time
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refimpl import seeds
from refimpl.algorithms import Algorithm, LossInputs
from refimpl.config import TrainConfig
from refimpl.history import History, Meter, joined
from refimpl.logprobs import log_probs as teacher_forced
from refimpl.loss_terms import added, corrected
from refimpl.models import Model
from refimpl.options import hooks_for, prepare
from refimpl.responses import Responses, describe
from refimpl.rollout import Batch
from refimpl.run import Run, session
from refimpl.validation import guarded

MAX_GRAD_NORM = 1.0
"""The policy's gradient is scaled down to this norm, and so is the critic's."""


@guarded
@torch.inference_mode(False)  # gradients are needed, wherever `train` is called
def train(
    algorithm: str | Algorithm,
    *,
    config: TrainConfig | None = None,
    model: Model | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    task=None,
    reward: Callable | None = None,
    log_probs: Callable = teacher_forced,
    sampler: Callable | None = None,
    corrections: Collection[Callable] = (),
    loss_terms: Collection[Callable] = (),
    teacher: Model | None = None,
    hooks: Collection[Callable] = (),
    checkpoint_dir: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> History:
    """Train a copy of `model` with `algorithm`; the history holds the trained copy.

    **Arguments:**

    - `algorithm`: a name of `ALGORITHMS`, or an `Algorithm` of your own.
    - `config`: a `TrainConfig`; the defaults suit the tiny model.
    - `model`, `tokenizer`: any causal LM; default: the warm-started tiny model.
      Weights that need no gradient (frozen layers, a LoRA's base) stay shared.
    - `task`: see `refimpl.tasks`; default: the arithmetic world. `reward`: a function
      with TRL's signature in place of the task's own.
    - `log_probs`: f(model, rollout, temperature) → (logp, entropy), in place of
      `logprobs.log_probs`, as `refimpl.pretrained.logprobs.log_probs`.
    - `sampler`: f(policy's sampler) → the one to use instead, such as `Delayed(4)`;
      see `refimpl.samplers`.
    - `corrections`, `loss_terms`: objects in addition to those of `config`,
      such as `loss_terms.Entropy(0.01)`; see `refimpl.loss_terms`.
    - `teacher`: a model with the policy's tokenizer. An advantage may use its log-probs
      of the sampled tokens (`advantage="distillation"`, `advantages.with_teacher`), and
      a loss term its whole distribution (`loss_terms.Distillation`).
    - `hooks`: functions f(run, step), called after every rollout; see `refimpl.hooks`.
      `progress`: show a bar.
    - `checkpoint_dir`: where to save every tenth rollout, as
      `hooks=[Checkpoint(folder, every=10)]` does; `resume` continues from there, on a
      CPU bit for bit; `overwrite` starts again.

    **A run that ends early** returns its history so far, with the reason in
    `History.ended` and in a warning: after SIGTERM or SIGHUP (which finish the rollout,
    save and stop), or if dynamic sampling finds no group with differing rewards, a
    gradient or a weight is no longer finite, a reward, a scorer or a task fails, or a
    checkpoint cannot be written.

    Raises `UserError` on bad input before any work; the reason, if a run ends before
    its first rollout is complete; `KeyboardInterrupt` after Ctrl-C, which finishes the
    rollout and saves (a second one stops at once); `StalenessError` if the largest
    |ratio − 1| stays at rounding noise although K > 1. Every error after the first
    rollout carries the run's `history`.
    """
    # What happens after every rollout: evaluation, your hooks, a checkpoint, a bar.
    after = hooks_for(hooks, progress, checkpoint_dir, resume, overwrite)
    run = prepare(
        algorithm,
        config,
        model,
        tokenizer,
        task,
        reward,
        log_probs=log_probs,
        sampler=sampler,
        corrections=corrections,
        loss_terms=loss_terms,
        teacher=teacher,
    )
    with session(run, after):  # whatever happens, complete rollouts are kept
        for step in range(len(run.history), run.config.rollouts):  # resumed, or from 0
            began = time.perf_counter()
            run.batch, metrics = collect(run, step)  # 1. to 3.
            metrics = joined(metrics, updates(run, run.batch, step))  # 4.
            run.history.add(step, metrics, time.perf_counter() - began)
            for hook in after:
                hook(run, step)
    return run.history


def collect(run: Run, step: int) -> tuple[Batch, dict[str, float | None]]:
    """Sample a rollout, score it and compute advantages.

    Returns the batch, which stays constant during the K updates, and the metrics.
    """

    def draw(refill: int = 0) -> Responses:
        # 1. Problems, and G responses to each; a refill has seeds of its own.
        problems = run.problems(step, refill)
        rollout = run.sample(problems, step, refill)
        # 2. Rewards: the run's to train on, the task's own to know who is right.
        return run.score(problems, rollout)

    # `draw`, once. Dynamic sampling draws again, in place of groups without a gradient.
    run.drawn = drawn = run.fill_batch(draw)
    rollout = drawn.rollout.rows(drawn.rows)  # the rows to train on: here, all
    # Fixed during the updates: log π_old (the sampler's own numbers, unless sampler and
    # policy may differ), log π_ref and a critic's values where they are needed.
    fixed = run.fixed(rollout)
    # 3. Advantages, per token, with the targets of a critic.
    advantages, targets, of_critic = run.advantages(run.scored_tokens(drawn, fixed))
    mask = run.loss_mask(rollout)  # 1 on tokens with a loss: all, unless filtered out
    others: dict = {"ref_logp": fixed.ref_logp, "old_values": fixed.values}
    others |= {"targets": targets}
    batch = Batch(fixed.rollout, mask, fixed.old_logp, advantages, **others)
    return batch, joined(fixed.metrics, of_critic, describe(drawn, run.task))


def updates(run: Run, batch: Batch, step: int) -> dict[str, float]:
    """Make K optimiser steps over shuffled mini-batches of whole groups.

    Returns their metrics: means such as `loss` and `grad_norm`, the largest
    |ratio − 1|, and quantiles of the log-ratio.
    """
    run.begun = step + 1  # a rollout that is cut short here is not saved
    config, meter = run.config, Meter()  # 4. K = minibatches × epochs updates
    shuffle = seeds.generator(run.seed(step, "shuffle"))
    for mini in batch.minibatches(config.minibatches, config.epochs, shuffle):
        update(run, mini, meter)
        for _ in range(1, config.critic_updates or 1):  # a critic may take more
            critic_update(run, mini)
    check_finite(run.model)  # the last step has no next gradient that would show it
    run.sampler.sync()  # a sampler with weights of its own takes the new ones
    return meter.read()


def update(run: Run, mini: Batch, meter: Meter) -> None:
    """Make one optimiser step, with the gradient summed over micro-batches."""
    # How tokens are averaged: a weight for each, once for the whole mini-batch. So the
    # losses of the micro-batches sum to that of the mini-batch, wherever it is cut.
    weight = run.normaliser(mini.mask.to(mini.old_logp), group=mini.rollout.group)
    for part, w in run.parts(mini, weight):
        # The policy's only forward pass here: loss, KL and entropy share it. `replay`
        # acts on a mixture of experts alone.
        reading = run.read(run.model, part.rollout, replay=True)
        # Corrections change the arguments of the loss, if the sampler was not quite the
        # policy, say. In a plain run there are none. The loss stays the paper's.
        inputs = LossInputs(
            reading.logp, part.old_logp, part.advantages, part.mask, w, metrics={}
        )
        for correct in run.corrections:
            inputs = corrected(correct, part, reading, inputs)
        # − Σ weight · objective. `share`: of the mini-batch's tokens, in this part.
        loss, means = run.algorithm.loss(*inputs.arguments, **run.hyperparameters)
        metrics = {n: part.share * x for n, x in means.items()} | inputs.metrics
        # Added terms (KL, entropy, a critic's loss) take the uncorrected weight.
        for term in run.loss_terms:
            more, measured = added(term, part, reading, w)
            loss, metrics = loss + more, metrics | measured
        loss.backward()
        meter.add(part, reading.logp, loss, metrics)  # ratios before any correction
    meter.end_update(optimizer_step(run))  # clip, step, clear; log the norm
    for term in run.adaptive_terms:  # a bonus that adjusts itself, if there is one
        term.end_update()


def critic_update(run: Run, mini: Batch) -> None:
    """Make one more step of the critic alone.

    The optimiser skips weights without a gradient, so the policy and its moments stay
    as they are.
    """
    rows = mini.informative_rows(keep_all=True)
    for part, _ in mini.micro_batches(mini.mask, rows, run.config.micro_batch_size):
        run.value(part)[0].backward()
    optimizer_step(run)


def optimizer_step(run: Run) -> Float[Tensor, ""]:
    """Clip the gradient's norm, step, and clear it. Returns the norm before clipping.

    Raises `FloatingPointError` if a norm is not finite; the weights stay as they were.
    """
    # Policy and critic are clipped apart: neither's gradient should shrink the other's.
    norms = {}
    for name, model in (("policy", run.model), ("critic", run.critic)):
        parameters = [] if model is None else [*model.parameters()]
        if any(p.grad is not None for p in parameters):
            norms[name] = torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
    for name, norm in zip(norms, torch.stack([*norms.values()]).tolist()):
        if not math.isfinite(norm):
            raise FloatingPointError(
                f"rollout {len(run.history) + 1}: the norm of the {name}'s gradient is "
                f"{norm}, training has diverged; lower the learning rate, or clip "
                "ratios more tightly (chapter 11 goes from symptoms to causes)"
            )
    if len(run.history) < run.config.critic_warmup:  # the policy waits for its critic
        run.model.zero_grad()
    run.optimizer.step()
    run.optimizer.zero_grad()
    return next(iter(norms.values()))  # the policy's, unless the critic steps alone


def check_finite(model: Model) -> None:
    """Raise `FloatingPointError` if a weight is infinite or NaN after the last step."""
    if not torch.nn.utils.get_total_norm(model.parameters()).isfinite():
        raise FloatingPointError(
            "the weights are no longer finite after the last update: training has "
            "diverged; lower the learning rate"
        )
