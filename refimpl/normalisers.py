"""Normalisers: the weight of every token in a loss, as one tensor.

| function | weight of token t of response i | used by |
|---|---|---|
| `seq_mean_token_mean` | 1 / (B · |o_i|) | GRPO, GSPO, GMPO, RSPO, SAPO |
| `group_token_mean` | 1 / (groups · Σ_{j in group} |o_j|) | DAPO, CISPO papers |
| `token_mean` | 1 / Σ_{j in batch} |o_j| | DAPO, CISPO in frameworks |
| `constant` | 1 / (B · max_length) | Dr. GRPO in code |
| `seq_mean_token_sum` | 1 / B | LUSPO, MiniRL |

B counts every row, an empty one too: a response whose mask is all 0 adds 0 and gives
the others no more weight (the papers' 1/G; TRL does the same, verl leaves it out).

**Gradient accumulation.** Make the weight of the whole mini-batch, then slice it as any
other tensor: the micro-batches' losses sum to the mini-batch's, wherever it is cut.
Without that, a mean of means weighs tokens by the accident of where they fell.

**One of your own** is a function f(mask), with `group` or `max_length` behind it if it
needs them; `Algorithm(normaliser=f)` takes it. `called(trl=…, verl=…)` says what these
engines call the same average; without that, a method is left out of their bridges.
"""

import inspect
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from refimpl.importance import Mask
from refimpl.validation import UserError, shown


def called(*, trl: str | None = None, verl: str | None = None) -> Callable:
    """A normaliser with the names that TRL (`loss_type`) and verl (`loss_agg_mode`)
    have for it."""

    def name(normaliser: Callable) -> Callable:
        normaliser.trl, normaliser.verl = trl, verl  # type: ignore[attr-defined]
        return normaliser

    return name


@called(trl="grpo", verl="seq-mean-token-mean")
def seq_mean_token_mean(mask: Mask) -> Float[Tensor, "B T"]:
    """1 / (B |o_i|): the mean over a response's tokens, then over responses."""
    mask = _wide(mask)
    return mask / (len(mask) * mask.sum(-1, keepdim=True).clamp(min=1))


@called(trl="dapo", verl="token-mean")
def token_mean(mask: Mask) -> Float[Tensor, "B T"]:
    """1 / Σ_j |o_j|: the mean over all tokens of the batch."""
    mask = _wide(mask)
    return mask / mask.sum().clamp(min=1)


@called(trl="dapo")
def group_token_mean(mask: Mask, group: Int[Tensor, " B"]) -> Float[Tensor, "B T"]:
    """1 / Σ_{j in group} |o_j|, a group counting by its number of responses."""
    mask = _wide(mask)
    if group.shape != mask.shape[:1]:
        raise UserError(
            f"group must have a number per response, ({len(mask)},), got {shown(group)}"
        )
    same = (group[:, None] == group[None, :]).to(mask.dtype)
    share = same.sum(-1, keepdim=True) / len(mask)  # 1/number of groups, if equal
    tokens = same @ mask.sum(-1, keepdim=True)
    return mask * (share / tokens.clamp(min=1))


@called(trl="dr_grpo", verl="seq-mean-token-sum-norm")
def constant(mask: Mask, max_length: float) -> Float[Tensor, "B T"]:
    """1 / (B max_length): every token weighs the same, in a long response too.

    `max_length` in tokens. Raises `UserError` if the mask is wider than that.
    """
    longest = mask.shape[-1] if mask.shape[-1] <= max_length else mask.sum(-1).max()
    if not longest <= max_length < float("inf"):  # as no NaN is
        raise UserError(
            "max_length must be a number at least as large as the longest response "
            f"({int(longest)} tokens), got {max_length:g}"
        )
    mask = _wide(mask)
    return mask / (len(mask) * max_length)


@called(trl="luspo", verl="seq-mean-token-sum")
def seq_mean_token_sum(mask: Mask) -> Float[Tensor, "B T"]:
    """1 / B: the sum over a response's tokens, then the mean over responses."""
    return _wide(mask) / len(mask)


KNOWN = seq_mean_token_mean, group_token_mean, token_mean, constant, seq_mean_token_sum
NORMALISERS: dict[str, Callable] = {f.__name__: f for f in KNOWN}


def apply(normaliser: Callable, mask: Mask, **known) -> Tensor:
    """`normaliser` of `mask`, given those of `known` (`group`, `max_length`) it takes.

    Raises `UserError` if it needs one that is not known.
    """
    wanted = list(inspect.signature(normaliser).parameters)[1:]
    missing = [name for name in wanted if known.get(name) is None]
    if missing:
        raise UserError(
            f"the normaliser {normaliser.__name__} needs {', '.join(missing)}: give "
            f"weight=normalisers.{normaliser.__name__}(mask, {', '.join(wanted)})"
        )
    return normaliser(mask, **{name: known[name] for name in wanted})


def _wide(mask: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or mask.ndim != 2:
        raise UserError(f"mask must be a tensor (B, T), got {shown(mask)}")
    return mask.to(torch.promote_types(mask.dtype, torch.float32))
