"""GRPO: Group Relative Policy Optimization (DeepSeekMath, 2402.03300, Eq. 3–4).

    J = (1/G) Σ_i (1/|o_i|) Σ_t { min( r Â_i, clip(r, 1−ε, 1+ε) Â_i ) − β k3 }
    Â_i = (R_i − mean R) / std R

**Changed against PPO:** no critic. G responses to one prompt are each other's
baseline, every token of a response shares its Â, and the KL moves into the loss.

**Departures.** The paper gives no ε; 0.2 is PPO's. It takes one update per rollout,
where r = 1 and the clip is inert; we take K > 1. β = 0.04 there; here the trainer's
`beta`, 0 by default, as in later work. The std is the sample std (`advantages`).
"""

import torch

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
from refimpl.importance import ratio
from refimpl.normalisers import seq_mean_token_mean


def objective(
    t: Tokens,
    *,
    epsilon_low: EpsilonLow = 0.2,
    epsilon_high: EpsilonHigh = 0.2,
    dual_clip: DualClip = None,
) -> Objective:
    """min(r Â, clip(r, 1−ε_low, 1+ε_high) Â) at every token."""
    r, low, high = ratio(t.z), 1 - epsilon_low, 1 + epsilon_high
    value = torch.minimum(r * t.advantages, r.clamp(low, high) * t.advantages)
    value = dual_clipped(value, t.advantages, dual_clip)
    return Objective(value, *stopped(r, t.advantages, low, high))


GRPO = Algorithm(
    name="grpo",
    title="GRPO",
    paper="Shao et al. 2024, 2402.03300",
    parent="ppo",
    changed="group baseline instead of a critic; mean per response",
    objective=objective,
    advantages=group_relative,
    normaliser=seq_mean_token_mean,
    trl="loss_type=grpo; the paper's KL: beta=0.04, use_bias_correction_kl=False",
    verl="adv_estimator=grpo, loss_agg_mode=seq-mean-token-mean, clip_ratio_c=1e9",
)
