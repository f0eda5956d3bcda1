"""GSPO: Group Sequence Policy Optimization (2507.18071, Eq. 5–7).

    J = (1/G) Σ_i min( s_i Â_i, clip(s_i, 1−ε_low, 1+ε_high) Â_i )
    s_i = ( π_θ(o_i|q) / π_old(o_i|q) )^{1/|o_i|} = exp( (1/|o_i|) Σ_t z_{i,t} )

**Changed against GRPO:** one ratio per response, the geometric mean of its tokens'. It
is clipped as a whole: a response keeps every token's gradient or loses every one.

**Scale.** The mean of |o_i| log-ratios stays far closer to 0 than each of them, so s_i
stays far closer to 1 than r. Hence the paper's ε of 3e-4 and 4e-4. At ε = 0.2 almost
nothing is ever clipped, and a warning says so.

**Departures.** None in the loss. If advantages differ within a response, this form
averages them; use GSPO-token instead.
"""

import warnings
from typing import Annotated

from pydantic import AfterValidator

from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.grpo import GRPO
from refimpl.algorithms.ppo import DualClip, EpsilonHigh, EpsilonLow, clipped
from refimpl.importance import ratio, sequence_log_ratio


def warn_of_token_scale(epsilon: float) -> float:
    """Warn if ε has the size that fits token ratios; return it unchanged."""
    if epsilon >= 0.1:  # GSPO's paper has 3e-4, PPO's 0.2
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
    return clipped(s, t.advantages, epsilon_low, epsilon_high, dual_clip)


GSPO = GRPO.child(
    name="gspo",
    title="GSPO",
    paper="Zheng et al. 2025, 2507.18071",
    changed="one ratio per response: the geometric mean, clipped as a whole",
    objective=objective,
    one_ratio=True,
)
