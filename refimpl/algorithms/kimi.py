"""Kimi K2.5's loss (2602.02276, Eq. 1): a band on the ratio, and DRO's penalty.

    J = (1/Σ_i|o_i|) Σ_i Σ_t { clip(r, e^−low, e^high) Â_i − τ (log r)² },     r = π_θ/μ

**Changed against DRO:** the ratio replaces log π, and is held constant outside the
band, whatever the sign of Â.

**Bounds.** `low` and `high` are in nats of log r, both > 0; τ is in reward units per
nat².

**Departures.** `old_logp` is the sampler's, μ. Eq. 1 clips r; the paper's text clips
log r, as we do. The constants are not published: log 5 is IcePop's band in prime-rl,
and τ was prime-rl's `kl_tau`, used together with DPPO's mask. No engine has all of this
loss.
"""

from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.dro import DRO
from refimpl.importance import ratio
from refimpl.validation import Positive, Weight


def objective(
    t: Tokens, *, low: Positive = 1.609, high: Positive = 1.609, tau: Weight = 1e-3
) -> Objective:
    """clip(r, e^−low, e^high) Â − τ (log r)²"""
    value = ratio(t.z.clamp(-low, high)) * t.advantages - tau * t.z**2
    return Objective(value, t.z < -low, t.z > high)


KIMI = DRO.child(
    name="kimi",
    title="Kimi K2.5",
    paper="Kimi Team 2026, 2602.02276",
    changed="the ratio instead of log π, held constant outside a band",
    objective=objective,
    anchor="sampler",
)
