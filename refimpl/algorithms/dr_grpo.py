"""Dr. GRPO: GRPO Done Right (2503.20783).

    J = (1/G) Σ_i Σ_t min( r Ã_i, clip(r, 1−ε, 1+ε) Ã_i ),     Ã_i = R_i − mean R

**Changed against GRPO:** two divisions are gone. Without 1/|o_i| a token weighs the
same in a short response and in a long one; without 1/std R a group weighs by how much
its rewards differ.

**Departures.** The printed sum over tokens would make the step grow with length; the
paper's own code divides it by a constant (3000 tokens there, `max_length` here, the
trainer's limit by default), and so do we. β = 0, as there. The paper takes one update
per rollout; we take K > 1.
"""

import torch

from refimpl.advantages import group_centred
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
from refimpl.normalisers import constant


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


DR_GRPO = Algorithm(
    name="dr_grpo",
    title="Dr. GRPO",
    paper="Liu et al. 2025, 2503.20783",
    parent="grpo",
    changed="no division by |o|, none by the group's std",
    objective=objective,
    advantages=group_centred,
    normaliser=constant,
    trl="loss_type=dr_grpo and scale_rewards=none",
    verl="loss_agg_mode=seq-mean-token-sum-norm and norm_adv_by_std_in_grpo=False",
)
