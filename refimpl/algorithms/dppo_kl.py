"""DPPO, binary KL (2602.04879, Eq. 14): a bound on the KL of "this token or another".

    M = 0 where D > δ and the token moves on, 1 elsewhere
    D = μ log(μ/π_θ) + (1 − μ) log((1 − μ)/(1 − π_θ))

**Changed against DPPO-TV:** D for |π_θ − μ|. To move on is to rise where Â > 0, and to
fall where Â < 0.

**Bounds.** δ in nats; 0.05 is the paper's, in its App. C and E.

**Departures.** Those of DPPO-TV. The probability of another token is at least 1e-8, of
either policy; verl adds 1e-8 to both.
"""

from dataclasses import replace
from functools import partial

from torch import Tensor

from refimpl.algorithms.base import Tokens
from refimpl.algorithms.dppo_tv import DPPO_TV, masked
from refimpl.kl import binary


def divergence(t: Tokens) -> Tensor:  # D, with the sign of log r
    far = float("inf")
    d = binary(t.old_logp, t.logp).nan_to_num(nan=far, posinf=far)
    return d * t.z.sign()


DPPO_KL = replace(
    DPPO_TV,
    name="dppo_kl",
    title="DPPO-KL",
    parent="dppo_tv",
    changed="what is bounded is the KL of this token or another",
    objective=partial(masked, divergence, delta_low=0.05, delta_high=0.05),
)
