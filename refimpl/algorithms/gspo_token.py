"""GSPO-token (2507.18071, Eq. 13–14): GSPO for advantages that vary per token.

    J = (1/G) Σ_i (1/|o_i|) Σ_t min( s_{i,t} Â_{i,t}, clip(s_{i,t}, …) Â_{i,t} )
    s_{i,t} = sg[s_i] · π_θ(o_{i,t}) / sg[π_θ(o_{i,t})]

**Changed against GSPO:** the value of s_{i,t} is s_i, but its gradient is that of its
own token. With one Â per response the two are the same in value and in gradient.

**Departures.** None.
"""

import torch

from refimpl.advantages import group_relative
from refimpl.algorithms.base import (
    Algorithm,
    DualClip,
    Objective,
    Tokens,
    dual_clipped,
    stopped,
)
from refimpl.algorithms.gspo import NarrowHigh, NarrowLow
from refimpl.importance import gspo_token_log_ratio, ratio
from refimpl.normalisers import seq_mean_token_mean


def objective(
    t: Tokens,
    *,
    epsilon_low: NarrowLow = 3e-4,
    epsilon_high: NarrowHigh = 4e-4,
    dual_clip: DualClip = None,
) -> Objective:
    """min(s Â, clip(s, 1−ε_low, 1+ε_high) Â),   s = sg[s_i] · π_θ / sg[π_θ]"""
    s = ratio(gspo_token_log_ratio(t.logp, t.z, t.mask))
    low, high = 1 - epsilon_low, 1 + epsilon_high
    value = torch.minimum(s * t.advantages, s.clamp(low, high) * t.advantages)
    value = dual_clipped(value, t.advantages, dual_clip)
    return Objective(value, *stopped(s, t.advantages, low, high))


GSPO_TOKEN = Algorithm(
    name="gspo_token",
    title="GSPO-token",
    paper="Zheng et al. 2025, 2507.18071",
    parent="gspo",
    changed="the same value, but a token's own gradient and advantage",
    objective=objective,
    advantages=group_relative,
    normaliser=seq_mean_token_mean,
    trl="none: importance_sampling_level is token or sequence",
    verl="policy_loss.loss_mode=gspo (verl has this form under that name)",
    one_ratio=True,
)
