"""Compare a user's log-probs with the library's, before the first rollout.

Without this, a `log_probs` with a wrong sign, a shift by one token or a forgotten
temperature trains to the end of a run on meaningless ratios.
"""

from typing import Any

import torch

from refimpl import logprobs
from refimpl.models import one_thread, precision, trained
from refimpl.run import Run
from refimpl.sampling import Sampler
from refimpl.validation import UserError, check_call, shown

FEW = 8
"""Rows of a task, and tokens of a response, that are tried."""
LARGEST_GAP = {"bfloat16": 0.05, "float32": 0.005, "float64": 0.005}
"""Nats per token. Rounding stays below this; the mistakes above exceed it."""


def check_reader(run: Run, prompts: list[str]) -> None:
    """Raise `UserError` unless `run.log_probs` are those of `logprobs.log_probs`.

    Each of `prompts` gets two short responses, which are not rewarded.
    """
    check_call("log_probs", run.log_probs, "model", "rollout", "temperature")
    settings, at = run.config.sampling, run.config.temperature
    settings |= {"max_new_tokens": min(FEW, run.config.max_new_tokens)}
    sampler = Sampler(run.model, run.config.dtype)
    with one_thread(run.model), precision(run.model, run.config.dtype):
        rollout = sampler.respond(
            run.tokenizer, prompts, 0, 0, group_size=2, **settings
        )
        with torch.no_grad():
            expected, _ = logprobs.log_probs(run.model, rollout, at)
        with torch.enable_grad():
            result: Any = run.log_probs(run.model, rollout, at)
    pair = result if isinstance(result, tuple) else ()
    if [getattr(x, "shape", None) for x in pair] != [expected.shape] * 2:
        raise UserError(
            f"log_probs must return (logp, entropy), each {tuple(expected.shape)}, got "
            f"{shown(result)}"
        )
    logp = result[0]
    # The sum of all gaps is small only if logp is 0 outside the mask, too.
    gap = ((logp - expected).abs().sum() / rollout.mask.sum()).item()
    if not gap < LARGEST_GAP[run.config.dtype]:
        raise UserError(
            "log_probs are not those of the policy: they differ by "
            f"{gap:.2g} nats per token from logprobs.log_probs at temperature {at:g}. "
            "Look at the sign, the shift by one token, the temperature, and the order "
            "(logp, entropy)"
        )
    if logp.requires_grad:
        logp.sum().backward()
    moved = any(p.grad is not None and p.grad.any() for p in trained(run.model))
    run.model.zero_grad()
    if not moved:
        raise UserError(
            "log_probs must return logp with its gradient, not detached, and from the "
            "model that it is given"
        )
