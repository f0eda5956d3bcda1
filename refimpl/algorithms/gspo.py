"""GSPO: Group Sequence Policy Optimization (2507.18071, Eq. 5–7).

    J = (1/G) Σ_i min( s_i Â_i, clip(s_i, 1−ε_low, 1+ε_high) Â_i )
    s_i = ( π_θ(o_i|q) / π_old(o_i|q) )^{1/|o_i|} = exp( (1/|o_i|) Σ_t z_{i,t} )

**Changed against GRPO:** one ratio a response, the geometric mean of its tokens'. It is
clipped as a whole: a response keeps every token's gradient or loses every one.

**Scale.** Averaging |o_i| log-ratios makes s_i far narrower than r, hence the paper's
ε of 3e-4 and 4e-4. At ε = 0.2 almost nothing is ever clipped: a warning says so.

**Departures.** None in the loss. Where advantages differ within a response, this form
averages them away; GSPO-token is the one to use.
"""

import warnings
from typing import Annotated

import torch
from pydantic import AfterValidator

from refimpl.advantages import group_relative
from refimpl.algorithms.base import (
    Algorithm,
    DualClip,
    EpsilonHigh,
    EpsilonLow,
    Objective,
    Tokens,
    dual_clipped,
    stopped,
)
from refimpl.importance import ratio, sequence_log_ratio
from refimpl.normalisers import seq_mean_token_mean

TOKEN_SCALE = 0.1
"""An ε as large as this was meant for token ratios (the papers: 3e-4 against 0.2)."""


def warn_of_token_scale(epsilon: float) -> float:
    if epsilon >= TOKEN_SCALE:
        warnings.warn(
            f"ε = {epsilon} is a bound for token ratios. GSPO clips a geometric mean "
            "over a whole response; its paper uses 3e-4 and 4e-4, and at 0.2 hardly "
            "anything is ever clipped",
            stacklevel=2,
        )
    return epsilon


NarrowLow = Annotated[EpsilonLow, AfterValidator(warn_of_token_scale)]
NarrowHigh = Annotated[EpsilonHigh, AfterValidator(warn_of_token_scale)]


def objective(
    t: Tokens,
    *,
    epsilon_low: NarrowLow = 3e-4,
    epsilon_high: NarrowHigh = 4e-4,
    dual_clip: DualClip = None,
) -> Objective:
    """min(s Â, clip(s, 1−ε_low, 1+ε_high) Â),   s = exp(mean_t z)"""
    s = ratio(sequence_log_ratio(t.z, t.mask)[:, None])  # (B, 1)
    low, high = 1 - epsilon_low, 1 + epsilon_high
    value = torch.minimum(s * t.advantages, s.clamp(low, high) * t.advantages)
    value = dual_clipped(value, t.advantages, dual_clip)
    return Objective(value, *stopped(s, t.advantages, low, high))


GSPO = Algorithm(
    name="gspo",
    title="GSPO",
    paper="Zheng et al. 2025, 2507.18071",
    parent="grpo",
    changed="one ratio per response: the geometric mean, clipped as a whole",
    objective=objective,
    advantages=group_relative,
    normaliser=seq_mean_token_mean,
    trl="loss_type=grpo, importance_sampling_level=sequence, "
    "epsilon=3e-4, epsilon_high=4e-4",
    verl="policy_loss.loss_mode=gspo, loss_agg_mode=seq-mean-token-mean, "
    "clip_ratio_low=3e-4, clip_ratio_high=4e-4",
    one_ratio=True,
)
