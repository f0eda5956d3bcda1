"""SAPO: Soft Adaptive Policy Optimization (2511.20347, Eq. 5–8).

    J = (1/G) Σ_i (1/|o_i|) Σ_t f(r_{i,t}) Â_i,     f(r) = (4/τ) σ( τ (r − 1) )
    τ = τ_pos where Â > 0, τ_neg elsewhere

**Changed against GRPO:** the hard clip becomes a soft gate. The gradient r Â ∇log π is
multiplied by g = f'(r) = sech²( τ (r − 1) / 2 ). The gate is 1 at r = 1 for every τ and
falls on *both* sides, even where a step would bring the ratio back to 1. A larger τ
makes it narrower; τ → 0 is no clip.

**Departures.** None. The paper's τ of 1.0 and 1.05 make wide gates: g falls to ½ only
at |r − 1| = 1.76/τ.
"""

import torch

from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.grpo import GRPO
from refimpl.importance import ratio
from refimpl.validation import Positive


def objective(
    t: Tokens, *, tau_pos: Positive = 1.0, tau_neg: Positive = 1.05
) -> Objective:
    """f(r) Â at every token."""
    tau = torch.full_like(t.z, tau_neg).masked_fill(t.advantages > 0, tau_pos)
    f = 4 / tau * torch.sigmoid(tau * (ratio(t.z) - 1))
    return Objective(f * t.advantages)


SAPO = GRPO.child(
    name="sapo",
    title="SAPO",
    paper="Gao et al. 2025, 2511.20347",
    changed="a soft gate on the ratio, narrower for negative advantages",
    objective=objective,
)
