"""GLM-5's loss for agents (2602.15763, §4.1.2, Eq. 3–5): a mask on both sides.

    J = E_t[ sg[f(r)] Â log π_θ(o_t) ],     r = π_θ(o_t) / μ(o_t)
    f(r) = r where 1 − ε_low < r < 1 + ε_high,     0 elsewhere

**Changed against CISPO:** a token outside the interval is dropped for either sign of Â.

**Bounds.** ε is a ratio's distance from 1. The report gives no value; 0.2 is that of
SkyRL's `rollout_is`. `sao` is this loss with wider bounds and a critic.

**Departures.** `old_logp` is the sampler's, μ. Eq. 3 has no stop-gradient; SkyRL's
`rollout_is` has. E_t is the mean over all tokens of a mini-batch.
"""

from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.cispo import CISPO
from refimpl.algorithms.ppo import EpsilonHigh, EpsilonLow
from refimpl.importance import ratio


def objective(
    t: Tokens, *, epsilon_low: EpsilonLow = 0.2, epsilon_high: EpsilonHigh = 0.2
) -> Objective:
    """sg[f(r)] Â log π_θ; a ratio exactly at a bound counts as outside."""
    r = ratio(t.z).detach()
    low, high = r <= 1 - epsilon_low, r >= 1 + epsilon_high
    return Objective((r * t.advantages * t.logp).masked_fill(low | high, 0), low, high)


GLM5 = CISPO.child(
    name="glm5",
    title="GLM-5",
    paper="GLM-5 Team 2026, 2602.15763",
    changed="a token outside an interval is dropped, for either sign",
    objective=objective,
    anchor="sampler",
)
