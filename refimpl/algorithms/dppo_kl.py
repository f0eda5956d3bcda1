"""DPPO, binary KL (2602.04879, Eq. 14): a bound on the KL of "this token or another".

    M = 0 where D > δ and the token moves on, 1 elsewhere
    D = μ log(μ/π_θ) + (1 − μ) log((1 − μ)/(1 − π_θ))

**Changed against DPPO-TV:** D for |π_θ − μ|. To move on is to rise where Â > 0, and to
fall where Â < 0.

**Departures.** Those of DPPO-TV; δ = 0.05 is the paper's, 1e-8 is verl's.
"""

from dataclasses import replace
from functools import partial

from torch import Tensor

from refimpl.algorithms.base import Tokens
from refimpl.algorithms.dppo_tv import DPPO_TV, masked


def divergence(t: Tokens) -> Tensor:  # D, with the sign of log r
    mu, pi, far = t.old_logp.exp(), t.logp.exp(), float("inf")
    d = (1 - mu) * ((1 - mu + 1e-8) / (1 - pi + 1e-8)).log() - mu * t.z
    return d.nan_to_num(nan=far, posinf=far) * t.z.sign()  # rounding: π_θ > 1


DPPO_KL = replace(
    DPPO_TV,
    name="dppo_kl",
    title="DPPO-KL",
    parent="dppo_tv",
    changed="what is bounded is the KL of this token or another",
    objective=partial(masked, divergence, delta_low=0.05, delta_high=0.05),
)
