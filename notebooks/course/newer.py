"""Newer methods as objective × weight: what a reader will meet next, ten lines each.

Held against verl (DPPO) and TRL (VESPO, LUSPO) by `tests/bridges/test_newer.py`.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.advantages import group_centred
from refimpl.algorithms import DAPO, GRPO, GSPO, Algorithm, Objective, Tokens
from refimpl.importance import LOG_RATIO_LIMIT, ratio


def dppo(low: float = 0.2, high: float = 0.2, cap: float = 20.0) -> Algorithm:
    """DPPO, binary total variation (2602.04879): a token is dropped where its
    *probability* has moved too far, not its ratio."""

    def objective(t: Tokens) -> Objective:
        r = ratio(t.z).detach().clamp(max=cap)
        moved = (t.logp.exp() - t.old_logp.exp()).detach()
        kept = torch.where(t.advantages > 0, moved <= high, moved >= -low)
        return Objective(kept * r * t.advantages * t.logp)

    return replace(DAPO, name="dppo", objective=objective, surrogate=False)


def vespo(good=(2.0, 3.0), bad=(3.0, 2.0)) -> Algorithm:
    """VESPO (2602.10693): φ(w) = e^λ w^k e^−λw of the whole response's ratio w, a
    constant; (k, λ) for Â ≥ 0, and for the others. φ(1) = 1."""

    def objective(t: Tokens) -> Objective:
        z = t.z.detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        log_w = z.sum(-1, keepdim=True).clamp(-18.42068, LOG_RATIO_LIMIT)  # ln 1e-8
        up = t.advantages[:, :1] >= 0
        k, rate = (torch.where(up, a, b) for a, b in zip(good, bad))
        phi = (rate + k * log_w - rate * log_w.exp()).exp()
        return Objective(phi * t.advantages * t.logp)

    return replace(
        DAPO, name="vespo", objective=objective, one_ratio=True, surrogate=False
    )


def every_token(mask: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """1 / B: no division by |o_i|, so a response weighs |o_i| / B."""
    return mask / len(mask)


def luspo() -> Algorithm:
    """LUSPO (2602.05261): GSPO's response, times its length."""
    return replace(GSPO, name="luspo", normaliser=every_token)


def minirl() -> Algorithm:
    """MiniRL (2512.01374): GRPO's clip, Â = R − R̄, and no division by a length."""
    return replace(
        GRPO, name="minirl", advantages=group_centred, normaliser=every_token
    )
