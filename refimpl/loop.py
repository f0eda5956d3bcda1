"""The training loop, from top to bottom: a run does what this page shows.

    train      rollout after rollout; hooks and a checkpoint after each
    collect    1. problems and responses · 2. rewards · 3. advantages
    updates    4. K updates, on shuffled mini-batches of whole groups
    update     one update: weight → log-probs → loss → gradient → step

`options.prepare` makes the objects that a `Run` holds. Every random choice comes from a
generator seeded by (run seed, rollout, purpose), so a run can be resumed after any
rollout, and the global generators are never touched.
"""

import math
import time
import warnings
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refimpl import advantages, seeds, turns
from refimpl.advantages import Scored, lam_by_length
from refimpl.algorithms import Algorithm
from refimpl.checkpoint import Checkpoint, ending_early
from refimpl.config import TrainConfig
from refimpl.history import History, Meter, explained_variance, joined, mean_over
from refimpl.hooks import check_staleness, evaluate, progress_bar
from refimpl.kl import k1, token_rewards
from refimpl.logprobs import log_probs as teacher_forced
from refimpl.loss_terms import LossInputs
from refimpl.models import Model, one_thread
from refimpl.moe import visited_again
from refimpl.options import Constants, Run, prepare
from refimpl.responses import (
    Responses,
    describe,
    sampler_mismatch,
    scored_responses,
    warn_if_never_right,
)
from refimpl.rewards import State, rows_of
from refimpl.rollout import Batch
from refimpl.validation import check_call, guarded

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
      Weights that need no gradient (frozen layers, a LoRA's base) stay as they are,
      and the trained model shares their memory.
    - `task`: see `refimpl.tasks`; default: the arithmetic world. `reward`: a function
      with TRL's signature in place of the task's own.
    - `log_probs`: f(model, rollout, temperature) → (logp, entropy), in place of
      `logprobs.log_probs`; `refimpl.pretrained.logprobs.log_probs` takes less memory
      and reads each prompt once.
    - `sampler`: f(policy) → the sampler to use instead, such as
      `lambda policy: Delayed(policy, rollouts=4)`; see `refimpl.samplers`.
    - `corrections`, `loss_terms`: objects in addition to those of `config`,
      such as `loss_terms.Entropy(0.01)`; see `refimpl.loss_terms`.
    - `teacher`: a model whose log-probs of the sampled tokens an advantage may use, as
      `advantage="distillation"` and `advantages.with_teacher` do.
    - `hooks`: functions f(run, step), called after every rollout. `progress`: show a
      bar, and the samples of `samples_every` as they come.
    - `checkpoint_dir`: where to save every `checkpoint_every` rollouts; `resume`
      continues from there, on a CPU bit for bit; `overwrite` starts again.

    **A run that ends early** returns its history so far, with the reason in
    `History.ended` and in a warning: after Ctrl-C, SIGTERM or SIGHUP (which finish the
    rollout, save and stop; a second Ctrl-C stops at once), when dynamic sampling finds
    no group with differing rewards, when a gradient or a weight is no longer finite,
    when a reward, a scorer or a task fails, or when a checkpoint cannot be written.

    Raises `UserError` on bad input before any work; the reason, if a run ends before
    its first rollout is complete; `StalenessError` if the largest |ratio − 1| stays at
    rounding noise although K > 1. Every error after the first rollout carries the
    run's `history`.
    """
    for hook in hooks:
        check_call("a hook", hook, "run", "step")
    with Checkpoint(checkpoint_dir, resume, overwrite) as checkpoint:
        run = prepare(
            algorithm,
            config,
            model,
            tokenizer,
            task,
            reward,
            log_probs,
            sampler,
            corrections,
            loss_terms,
            teacher,
            progress,
        )
        checkpoint.restore(run)
        with (
            one_thread(run.model),
            ending_early(run, checkpoint),
            progress_bar(run) as show,
        ):
            # A user's hook may switch gradients off; the wrapper restores them.
            user_hooks = map(torch.enable_grad(), hooks)
            after_rollout = [evaluate, *user_hooks, show]
            for step in range(len(run.history), run.config.rollouts):
                began = time.perf_counter()
                # Problems, responses, rewards, advantages.
                run.batch, row = collect(run, step)
                # K updates. Nothing is saved between them: a resumed run would repeat
                # those that were already made.
                run.complete = False
                row = joined(row, updates(run, run.batch, step))
                run.history.add(step, row, time.perf_counter() - began)
                run.complete = True
                # Evaluate first, so that the user's hooks can read the accuracy.
                for hook in after_rollout:
                    hook(run, step)
                checkpoint.save_when_due(run, step)
                check_staleness(run, step)
    if run.history.ended is not None:
        warnings.warn(str(run.history.ended), stacklevel=4)  # skip the decorators
    return run.history


def collect(run: Run, step: int) -> tuple[Batch, dict[str, float | None]]:
    """Sample a rollout, score it and compute advantages.

    Returns the batch, which stays constant during the K updates, and the metrics.
    """
    config = run.config
    # 1. and 2. Problems, G responses to each, and their rewards (`sample_and_score`).
    # Dynamic sampling draws further rounds until enough groups have differing rewards.
    drawn, rows, rounds = run.fill_batch(partial(sample_and_score, run, step))
    if step == 0:
        warn_if_never_right(drawn)
    rollout = drawn.rollout.rows(rows)
    mask, row = rollout.mask, {"sampling/rounds": float(rounds)}
    # Compute log π_old, log π_ref and V before the policy changes. If no pass
    # computes log π_old, the sampler's own log-probs stand for it.
    known = Constants(*rollout.in_parts(run.constants, config.micro_batch_size))
    old_logp = rollout.logp if known.old_logp is None else known.old_logp
    if known.old_logp is not None:
        row |= sampler_mismatch(rollout, old_logp, config.truncated)
    if known.experts is not None:
        rollout, change = visited_again(rollout, known.experts, known.router_logp)
        row["sampling/expert_change"] = mean_over(change, mask)
    penalty = None
    if known.ref_logp is not None:
        kl = k1(old_logp, known.ref_logp)
        row["kl"] = mean_over(kl * mask, mask)
        if config.kl_in == "reward":  # β · KL is subtracted from each token's reward
            penalty = config.beta * kl
    if known.teacher_logp is not None:
        row["teacher_kl"] = mean_over(k1(old_logp, known.teacher_logp) * mask, mask)
    # 3. Advantages, one per response (copied to its tokens below) or one per token.
    answers = hasattr(run.task, "observe")  # then an estimator may compare turns
    states = turns.seen(run.task, run.tokenizer, rollout) if answers else {}
    by_length = config.lam_alpha and lam_by_length(mask, config.lam_alpha)
    scored = Scored(
        rewards=token_rewards(drawn.paid[rows], mask, penalty),
        group=rollout.group,
        mask=mask,
        values=known.old_values,
        gamma=config.gamma,
        lam=config.lam if by_length is None else by_length,
        components=drawn.component_matrix(rows),
        weights=getattr(run.reward, "weights", None),
        logp=old_logp,
        teacher_logp=known.teacher_logp,
        **states,
    )
    estimate = run.advantages(scored)
    whose = f"the advantages of {run.algorithm.name}"
    advantages.check_estimate(estimate, mask, whose)
    estimate, targets = estimate.to(mask.dtype), None
    if estimate.ndim == 1:
        estimate = estimate[:, None].expand_as(mask)
    if run.value is not None:
        estimate, targets, row["explained_var"] = with_targets(run, scored, estimate)
    if config.overlong_filtering:
        # Truncated responses have no loss, but their rewards stay in the baseline.
        mask = mask * ~rollout.truncated[:, None]
    batch = Batch(
        rollout,
        mask,
        old_logp,
        estimate,
        ref_logp=known.ref_logp,
        old_values=known.old_values,
        targets=targets,
    )
    return batch, joined(row, describe(drawn, run.task.habit, run.task.habits))


def with_targets(run: Run, scored: Scored, estimate: Tensor) -> tuple:
    """Return the final advantages, the critic's targets and its explained variance.

    The targets come before whitening, because a critic predicts raw returns. With
    `lam_critic` = 1 they are the returns, however wrong V is.
    """

    def target(lam: float) -> Tensor:
        return advantages.gae(replace(scored, lam=lam)) + scored.values

    config = run.config
    known = explained_variance(scored.values, target(1.0), scored.mask)
    targets = estimate + scored.values
    if config.lam_critic is not None:
        targets = target(config.lam_critic)
    if config.whiten:
        estimate = advantages.whiten(estimate, scored.mask)
    return estimate, targets, known


def sample_and_score(run: Run, step: int, refill: int = 0) -> Responses:
    """Draw problems, sample G responses to each, and score them.

    `refill` is the number of a further round of dynamic sampling, 0 in the first.
    """
    config = run.config

    # A seed per purpose, so that a change in sampling leaves the problems unchanged.
    def seed(purpose: str) -> int:
        purpose = f"{purpose} {refill}" if refill else purpose
        return seeds.seed_for(config.seed, step, purpose)

    # 1. Problems, and G responses to each.
    problems = rows_of(run.task, "sample", config.prompts_per_rollout, seed("q"))
    rollout = run.sampler.respond(
        run.tokenizer,
        [problem["prompt"] for problem in problems],
        seed("sample"),
        seed("router"),
        group_size=config.group_size,
        observe=getattr(run.task, "observe", None),  # the task may answer, as a tool
        **config.sampling,
    )
    # 2. Rewards. The run's function is trained on; the task's own measures correctness.
    K = config.updates_per_rollout
    state = State(global_step=step * K, max_steps=config.rollouts * K)
    responses = scored_responses(run, problems, rollout, state)
    if config.samples_every and step % config.samples_every == 0 and not refill:
        run.show_samples(step, responses)
    return responses


def updates(run: Run, batch: Batch, step: int) -> dict[str, float]:
    """Make K optimiser steps over shuffled mini-batches of whole groups.

    Gives the sampler the new weights, and returns the metrics of the K steps.
    """
    config, meter = run.config, Meter()
    # 4. K = minibatches × epochs updates.
    shuffle = seeds.generator(seeds.seed_for(config.seed, step, "shuffle"))
    for mini in batch.minibatches(config.minibatches, config.epochs, shuffle):
        update(run, mini, meter)
        for _ in range((config.critic_updates or 1) - 1):
            critic_update(run, mini)
    check_finite(run.model)  # the last step has no next gradient that would show it
    run.sampler.sync()
    return meter.read()


def update(run: Run, mini: Batch, meter: Meter) -> None:
    """Make one optimiser step, with the gradient summed over micro-batches."""
    # Compute the weight of each token once, for the whole mini-batch. The losses of the
    # micro-batches then sum to the loss of the mini-batch, wherever it is cut.
    weight = run.normaliser(mini.mask.to(mini.old_logp), mini.rollout.group)
    # A group with equal rewards has Â = 0 and no gradient. Its tokens count in the
    # weights above, but need no forward pass.
    rows = mini.informative_rows(keep_all=run.zero_advantage_rows_matter)
    size = run.config.micro_batch_size
    by_group = getattr(run.log_probs, "by_group", False)  # reads a group's prompt once
    for part, w in mini.micro_batches(weight, rows, size, by_group):
        # The policy's only forward pass here: loss, KL and entropy share it.
        reading = run.read(run.model, part.rollout, run.config.replay is not None)
        # Corrections (for a sampler that differs from π_old, for routers that moved)
        # change the arguments of the loss. The loss itself stays the paper's.
        inputs = LossInputs(reading.logp, part.old_logp, w, {})
        for correct in run.corrections:
            inputs = correct(part, reading, inputs)
        # − Σ weight · objective. The added terms below (KL, entropy, value) take the
        # weight without the corrections.
        loss, metrics = run.algorithm.loss(
            inputs.logp,
            inputs.old_logp,
            part.advantages,
            part.mask,
            inputs.weight,
            **run.hyperparameters,
        )
        metrics |= inputs.metrics
        for term in run.loss_terms:
            added, measured = term(part, reading, w)
            loss, metrics = loss + added, metrics | measured
        loss.backward()
        # The history records the policy's own ratios, before any correction.
        meter.add(part, reading.logp, loss, metrics)
    meter.end_update(optimizer_step(run))
    for term in run.loss_terms:
        if hasattr(term, "end_update"):  # it remembers, as an adaptive bonus does
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
