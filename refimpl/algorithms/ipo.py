"""IPO: INTELLECT Policy Optimization (prime-rl#1930), a bound on both sides.

    J = (1/Σ_i|o_i|) Σ_i Σ_t { 1[|π_θ − μ| ≤ δ] min(r, max_ratio) Â_i − τ (log r)² }
    r = π_θ/μ

**Changed against DPPO-TV:** the sign of Â does not matter; a token that comes back is
dropped, too. τ pulls every token to the sampler, also the dropped ones.

At the cap a token keeps its gradient, max_ratio Â ∇log π_θ.

**Bounds.** δ is a difference of probabilities, τ in reward units per nat².

**Departures.** `old_logp` is the sampler's, μ. There is no paper: stated is prime-rl's
default of March and, with δ 0.1 and τ 1e-3, again of August 2026 (#3418); since #3586
0.3 and 0, and in its newest stored settings τ is gone and r capped at 1e4, as here. Not
the IPO of 2310.12036.
"""

from refimpl.advantages import group_centred
from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.cispo import MaxRatio
from refimpl.algorithms.dppo_tv import DPPO_TV, change
from refimpl.importance import ratio
from refimpl.validation import Weight


def objective(
    t: Tokens, *, delta: Weight = 0.3, tau: Weight = 0.0, max_ratio: MaxRatio = 1e4
) -> Objective:
    """1[|π_θ − μ| ≤ δ] min(r, max_ratio) Â − τ (log r)², with r Â's gradient"""
    low, high = change(t) < -delta, change(t) > delta
    capped = ratio(t.z).detach().clamp(max=max_ratio)
    slope = 1 + t.logp - t.logp.detach()  # 1, with the gradient of log π_θ
    gain = (capped * slope * t.advantages).masked_fill(low | high, 0)
    return Objective(gain - tau * t.z**2, low, high)


IPO = DPPO_TV.child(
    name="ipo",
    title="IPO",
    paper="Prime Intellect 2026, prime-rl#1930",
    changed="the bound holds whatever the sign of the advantage",
    objective=objective,
    advantages=group_centred,
)
