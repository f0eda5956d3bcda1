"""Normalisers compute the weight of each token in a loss, as one tensor (B, T).

| function | weight of token t of response i | used by |
|---|---|---|
| `seq_mean_token_mean` | 1 / (B · |o_i|) | GRPO, GSPO, GMPO, RSPO, SAPO |
| `group_token_mean` | 1 / (groups · Σ_{j in group} |o_j|) | DAPO, CISPO papers |
| `token_mean` | 1 / Σ_{j in batch} |o_j| | DAPO, CISPO in frameworks |
| `constant` | 1 / (B · max_length) | Dr. GRPO in code |
| `seq_mean_token_sum` | 1 / B | LUSPO, MiniRL |

B counts all rows, including empty ones. A response whose mask is all 0 adds 0 and does
not increase the weight of the others (the papers' 1/G; TRL does the same, verl leaves
such a response out).

**Gradient accumulation.** Compute the weight of the whole mini-batch, then slice it
like any other tensor. The losses of the micro-batches then sum to that of the
mini-batch, wherever it is cut. A mean of means would instead weigh tokens by the size
of the micro-batch that they happen to be in.

**Your own normaliser** is a function f(mask), with further arguments `group` or
`max_length` if it needs them, for `Algorithm(normaliser=f)`. For a mean Σ weight = 1
over a mini-batch: returning the mask itself would sum the loss over all tokens.
`called(trl=…, verl=…)` adds the names of the same average in these engines. Without
them, a method is left out of the bridges.
"""

import inspect
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl.importance import Mask
from refimpl.validation import UserError, shown


def called(*, trl: str | None = None, verl: str | None = None) -> Callable:
    """Add the names of a normaliser in TRL (`loss_type`) and verl (`loss_agg_mode`)."""

    def name(normaliser: Callable) -> Callable:
        normaliser.trl, normaliser.verl = trl, verl  # type: ignore[attr-defined]
        return normaliser

    return name


@called(trl="grpo", verl="seq-mean-token-mean")
def seq_mean_token_mean(mask: Mask) -> Float[Tensor, "B T"]:
    """1 / (B |o_i|): the mean over a response's tokens, then over responses."""
    mask = _float_mask(mask)
    return mask / (len(mask) * mask.sum(-1, keepdim=True).clamp(min=1))


@called(trl="dapo", verl="token-mean")
def token_mean(mask: Mask) -> Float[Tensor, "B T"]:
    """1 / Σ_j |o_j|: the mean over all tokens of the batch."""
    mask = _float_mask(mask)
    return mask / mask.sum().clamp(min=1)


@called(trl="dapo")
def group_token_mean(mask: Mask, group: Int[Tensor, " B"]) -> Float[Tensor, "B T"]:
    """1 / Σ_{j in group} |o_j|, times the group's share of the responses."""
    mask = _float_mask(mask)
    if group.shape != mask.shape[:1]:
        raise UserError(
            f"group must have one id per response, ({len(mask)},), got {shown(group)}"
        )
    same = (group[:, None] == group[None, :]).to(mask.dtype)
    share = same.sum(-1, keepdim=True) / len(mask)  # of the B responses
    tokens = same @ mask.sum(-1, keepdim=True)
    return mask * (share / tokens.clamp(min=1))


@called(trl="dr_grpo", verl="seq-mean-token-sum-norm")
def constant(mask: Mask, max_length: float) -> Float[Tensor, "B T"]:
    """1 / (B max_length): every token weighs the same, in a long response too.

    `max_length` is in tokens. Raises `UserError` if a response is longer than that.
    """
    longest = mask.shape[-1] if mask.shape[-1] <= max_length else mask.sum(-1).max()
    if not longest <= max_length < float("inf"):  # false for NaN, too
        raise UserError(
            "max_length must be a number at least as large as the longest response "
            f"({int(longest)} tokens), got {max_length:g}"
        )
    mask = _float_mask(mask)
    return mask / (len(mask) * max_length)


@called(trl="luspo", verl="seq-mean-token-sum")
def seq_mean_token_sum(mask: Mask) -> Float[Tensor, "B T"]:
    """1 / B: the sum over a response's tokens, then the mean over responses."""
    return _float_mask(mask) / len(mask)


KNOWN = seq_mean_token_mean, group_token_mean, token_mean, constant, seq_mean_token_sum
NORMALISERS: dict[str, Callable] = {f.__name__: f for f in KNOWN}


def apply(
    normaliser: Callable, mask: Mask, group=None, max_length=None
) -> Float[Tensor, "B T"]:
    """Call `normaliser` with what it takes. Raises `UserError` if one of it is None."""
    known = {"group": group, "max_length": max_length}
    wanted = list(inspect.signature(normaliser).parameters)[1:]
    if missing := [name for name in wanted if known.get(name) is None]:
        raise UserError(
            f"the normaliser {normaliser.__name__} needs {', '.join(missing)}: give "
            f"weight=normalisers.{normaliser.__name__}(mask, {', '.join(wanted)})"
        )
    return normaliser(mask, **{name: known[name] for name in wanted})


def _float_mask(mask: Tensor) -> Tensor:
    # Half precision cannot count the tokens of a batch.
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        raise UserError(f"mask must be a tensor (B, T), got {shown(mask)}")
    return mask.to(torch.promote_types(mask.dtype, torch.float32))
