"""GSPO-token (2507.18071, Eq. 13–14): GSPO for advantages that vary per token.

    J = (1/G) Σ_i (1/|o_i|) Σ_t min( s_{i,t} Â_{i,t}, clip(s_{i,t}, …) Â_{i,t} )
    s_{i,t} = sg[s_i] · π_θ(o_{i,t}) / sg[π_θ(o_{i,t})]

**Changed against GSPO:** the value of s_{i,t} is s_i, but its gradient is that of its
own token. With one Â per response both methods have the same value and gradient.

**Departures.** None.
"""

from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.gspo import GSPO, NarrowHigh, NarrowLow
from refimpl.algorithms.ppo import DualClip, clipped
from refimpl.importance import ratio, sequence_log_ratio


def objective(
    t: Tokens,
    *,
    epsilon_low: NarrowLow = 3e-4,
    epsilon_high: NarrowHigh = 4e-4,
    dual_clip: DualClip = None,
) -> Objective:
    """min(s Â, clip(s, 1−ε_low, 1+ε_high) Â),   s = sg[s_i] · π_θ / sg[π_θ]"""
    own = t.logp - t.logp.detach()  # 0, with the gradient of the token's own log π_θ
    s = ratio(sequence_log_ratio(t.z, t.mask).detach()[:, None] + own)
    return clipped(s, t.advantages, epsilon_low, epsilon_high, dual_clip)


GSPO_TOKEN = GSPO.child(
    name="gspo_token",
    title="GSPO-token",
    changed="the same value, but a token's own gradient and advantage",
    objective=objective,
)
