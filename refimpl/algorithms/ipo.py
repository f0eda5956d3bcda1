"""IPO: INTELLECT Policy Optimization (prime-rl#1930), a bound on both sides.

    J = (1/Σ_i|o_i|) Σ_i Σ_t { 1[|π_θ − μ| ≤ δ] r Â_i − τ (log r)² },      r = π_θ/μ

**Changed against DPPO-TV:** the sign of Â does not matter; a token that comes back is
dropped, too. τ pulls every token to the sampler, also the dropped ones.

**Departures.** `old_logp` is the sampler's, μ. There is no paper: stated is prime-rl's
default of March and, with δ 0.1 and τ 1e-3, again of August 2026 (#3418); since #3586
0.3 and 0, and τ is gone from its newest stored settings. Its later cap of 1e4 on r is
missing: here r ends at e^20, with no gradient beyond. Not the IPO of 2310.12036.
"""

from dataclasses import replace

from refimpl.advantages import group_centred
from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.dppo_tv import DPPO_TV, change
from refimpl.checks import Weight
from refimpl.importance import ratio


def objective(t: Tokens, *, delta: Weight = 0.3, tau: Weight = 0.0) -> Objective:
    """1[|π_θ − μ| ≤ δ] r Â − τ (log r)²"""
    low, high = change(t) < -delta, change(t) > delta
    gain = (ratio(t.z) * t.advantages).masked_fill(low | high, 0)
    return Objective(gain - tau * t.z**2, low, high)


IPO = replace(
    DPPO_TV,
    name="ipo",
    title="IPO",
    paper="Prime Intellect 2026, prime-rl#1930",
    parent="dppo_tv",
    changed="the bound holds whatever the sign of the advantage",
    objective=objective,
    advantages=group_centred,
)
