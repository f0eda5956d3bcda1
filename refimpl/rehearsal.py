"""Try out everything that a user hands in, before the first rollout.

Without this, a `log_probs` with a wrong sign, a shift by one token or a forgotten
temperature trains to the end of a run on meaningless ratios; and a function whose
result has a wrong shape ends the run after its first rollout.
"""

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from refimpl import logprobs
from refimpl.advantages import Scored, check_estimate
from refimpl.kl import token_rewards
from refimpl.loss_terms import LossInputs
from refimpl.models import one_thread, precision, trained
from refimpl.rollout import Batch, Rollout
from refimpl.sampling import Policy
from refimpl.validation import UserError, check_call, shown

if TYPE_CHECKING:
    from refimpl.options import Run

FEW = 8
"""Rows of a task, and tokens of a response, that are tried."""
LARGEST_GAP = {"bfloat16": 0.05, "float32": 0.005, "float64": 0.005}
"""Nats per token. Rounding stays below this; the mistakes above exceed it."""


def rehearse(run: "Run", prompts: list[str]) -> None:
    """Raise `UserError` if a function takes other arguments or returns something else.

    Each of `prompts` gets two short responses, which are not rewarded.
    """
    check_call("log_probs", run.log_probs, "model", "rollout", "temperature")
    for correct in run.corrections:
        check_call("a correction", correct, "part", "reading", "inputs")
    for term in run.loss_terms:
        check_call("a term of the loss", term, "part", "reading", "weight")
    check_estimators(run)
    own = run.log_probs is not logprobs.log_probs
    objects = [*run.corrections, *run.loss_terms]
    if not (own or objects):
        return
    settings = run.config.sampling
    settings |= {"max_new_tokens": min(FEW, run.config.max_new_tokens)}
    policy = Policy(run.model, run.config.dtype, records=run.records_routing)
    with one_thread(run.model), torch.enable_grad():
        rollout = policy.respond(run.tokenizer, prompts, 0, 0, group_size=2, **settings)
        if own:
            check_reader(run, rollout)
        if objects:
            check_objects(run, rollout)


def check_estimators(run: "Run") -> None:
    """Try the advantages and the normaliser on made-up responses of 1 to 8 tokens."""
    config, device = run.config, run.model.device
    group = torch.arange(config.prompts_per_rollout, device=device)
    group = group.repeat_interleave(config.group_size)
    longest = min(FEW, config.max_new_tokens)
    row, column = (torch.arange(n, device=device) for n in (len(group), longest))
    mask = (column <= row[:, None] % longest).float()
    names = torch.arange(len(getattr(run.reward, "components", {})), device=device)
    answers = hasattr(run.task, "observe")  # then each of these has a single turn
    scored = Scored(
        rewards=token_rewards((row % 2).to(mask), mask),
        group=group,
        mask=mask,
        values=torch.zeros_like(mask),
        gamma=config.gamma,
        lam=config.lam,
        components=(row[:, None] + names) % 2 if len(names) else None,
        weights=getattr(run.reward, "weights", None),
        logp=torch.zeros_like(mask),
        teacher_logp=torch.zeros_like(mask),
        states=row.new_zeros(len(row), 1) if answers else None,
        state_scores=mask.new_zeros(len(row), 2) if answers else None,
    )
    whose = f"of {run.algorithm.name}"
    check_estimate(run.advantages(scored), mask, f"the advantages {whose}")
    weight = run.normaliser(mask, group)
    if not has_shape(mask, weight) or not weight.isfinite().all():
        raise UserError(
            f"the normaliser {whose} must return a finite weight per token, shape "
            f"{tuple(mask.shape)}, got {shown(weight)}"
        )


def check_reader(run: "Run", rollout: Rollout) -> None:
    """Compare the log-probs with those of `logprobs.log_probs`."""
    at = run.config.temperature
    with precision(run.model, run.config.dtype):
        with torch.no_grad():
            expected, _ = logprobs.log_probs(run.model, rollout, at)
        result: Any = run.log_probs(run.model, rollout, at)
    if not isinstance(result, tuple) or len(result) != 2:
        raise UserError(f"log_probs must return (logp, entropy), got {shown(result)}")
    for name, x in zip(("logp", "entropy"), result):
        if not has_shape(expected, x):
            raise UserError(
                f"log_probs must return {name} of shape {tuple(expected.shape)}, got "
                f"{shown(x)}"
            )
    # The sum of all gaps is small only if logp is 0 outside the mask, too.
    gap = ((result[0] - expected).abs().sum() / rollout.mask.sum()).item()
    if not gap < LARGEST_GAP[run.config.dtype]:
        raise UserError(
            "log_probs are not those of the policy: they differ by "
            f"{gap:.2g} nats per token from logprobs.log_probs at temperature {at:g}. "
            "Look at the sign, the shift by one token, the temperature, and the order "
            "(logp, entropy)"
        )
    if result[0].requires_grad:
        result[0].sum().backward()
    moved = any(p.grad is not None and p.grad.any() for p in trained(run.model))
    run.model.zero_grad()
    if not moved:
        raise UserError(
            "log_probs must return logp with its gradient, not detached, and from the "
            "model that it is given"
        )


def check_objects(run: "Run", rollout: Rollout) -> None:
    """Call the corrections and the terms as `loop.update` does with a micro-batch."""
    mask = rollout.mask
    with torch.no_grad():
        known = run.constants(rollout)
    part = Batch(
        rollout,
        mask,
        old_logp=rollout.logp if known.old_logp is None else known.old_logp,
        advantages=mask.clone(),
        ref_logp=known.ref_logp,
        old_values=known.old_values,
        targets=known.old_values,
        token_count=mask.sum(),
        response_count=mask.new_tensor(len(mask)),
    )
    reading, weight = run.read(run.model, rollout), mask / mask.sum()
    inputs = LossInputs(reading.logp, part.old_logp, weight, {})
    for correct in run.corrections:
        inputs = correct(part, reading, inputs)
        if not (isinstance(inputs, LossInputs) and has_shape(mask, *inputs[:3])):
            raise UserError(
                f"the correction {shown(correct)} must return LossInputs(logp, "
                f"old_logp, weight, metrics), tensors of shape {tuple(mask.shape)}, "
                f"got {shown(inputs)}"
            )
    for term in run.loss_terms:  # copied, because a term may remember its calls
        added: Any = copy.copy(term)(part, reading, weight)
        pair = isinstance(added, tuple) and len(added) == 2
        if not (pair and has_shape(mask.sum(), added[0])):
            raise UserError(
                f"the term {shown(term)} must return (a scalar tensor to add to the "
                f"loss, metrics), got {shown(added)}"
            )
        if added[0] and not added[0].requires_grad:
            raise UserError(f"the term {shown(term)} has no gradient: do not detach it")


def has_shape(like: Tensor, *values: Any) -> bool:
    """True if all values are tensors of the shape of `like`."""
    return all(isinstance(x, Tensor) and x.shape == like.shape for x in values)
