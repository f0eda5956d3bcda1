"""IPO: INTELLECT Policy Optimization (prime-rl#1930), a bound on both sides.

    J = (1/Σ_i|o_i|) Σ_i Σ_t { 1[|π_θ − μ| ≤ δ] min(r, max_ratio) Â_i − τ (log r)² }
    r = π_θ/μ

**Changed against DPPO-TV:** the sign of Â does not matter, so a token that returns
towards μ is dropped as well. The τ term pulls every token towards the sampler,
including the dropped ones.

At the cap a token keeps its gradient, max_ratio Â ∇log π_θ.

**Bounds.** δ is a difference of probabilities, τ is in reward units per nat².

**Departures.** `old_logp` is the sampler's, μ. There is no paper. The form above was
prime-rl's default in March 2026, with δ = 0.2, and again in August, with δ = 0.1 and
τ = 1e-3 (#3418). Since #3586 δ is 0.3 and τ is 0; the newest stored settings have no τ
and cap r at 1e4, as here. This is not the IPO of 2310.12036.
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
    """1[|π_θ − μ| ≤ δ] min(r, max_ratio) Â − τ (log r)², with the gradient of r Â."""
    low, high = change(t) < -delta, change(t) > delta
    capped = ratio(t.z).detach().clamp(max=max_ratio)
    slope = 1 + t.logp - t.logp.detach()  # 1, with the gradient of log π_θ
    gain = (capped * slope * t.advantages).masked_fill(low | high, 0)
    return Objective(gain - tau * t.z**2, low, high)


IPO = DPPO_TV.child(
    name="ipo",
    title="IPO",
    paper="Prime Intellect 2026, prime-rl#1930",
    changed="the bound holds for either sign of the advantage",
    penalty="tau",
    objective=objective,
    advantages=group_centred,
)
