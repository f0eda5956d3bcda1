"""DPPO, binary KL (2602.04879, Eq. 14): a bound on the KL of "this token or another".

    M = 0 where D > δ and the token moves on, 1 elsewhere
    D = μ log(μ/π_θ) + (1 − μ) log((1 − μ)/(1 − π_θ))

**Changed against DPPO-TV:** D replaces |π_θ − μ|. A token *moves on* if it has risen
where Â > 0, or fallen where Â < 0.

**Bounds.** δ is in nats; 0.05 is the paper's value (App. C and E).

**Departures.** Those of DPPO-TV. Under either policy the probability of all other
tokens is taken to be at least 1e-8; verl adds 1e-8 to both.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.cispo import MaxRatio
from refimpl.algorithms.dppo_tv import DPPO_TV, bounded
from refimpl.kl import binary
from refimpl.validation import Weight


def objective(
    t: Tokens,
    *,
    delta_low: Weight = 0.05,
    delta_high: Weight = 0.05,
    max_ratio: MaxRatio = 20.0,
) -> Objective:
    """M sg[min(r, max_ratio)] Â log π_θ"""
    return bounded(t, divergence(t), delta_low, delta_high, max_ratio)


def divergence(t: Tokens) -> Float[Tensor, "B T"]:
    """D with the sign of log r; infinite where D is not a number."""
    d = binary(t.old_logp, t.logp).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return d * t.z.sign()


DPPO_KL = DPPO_TV.child(
    name="dppo_kl",
    title="DPPO-KL",
    changed="bounds a binary KL, of drawing this token or any other",
    objective=objective,
)
