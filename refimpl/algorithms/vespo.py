"""VESPO: Variational Sequence-level Soft Policy Optimization (2602.10693).

    ∇J = (1/Σ_i|o_i|) Σ_i Σ_t φ(W_i) Â_i ∇log π_θ(o_{i,t})
    φ(W) = W^k e^{λ(1 − W)},     W_i = π_θ(o_i|q) / μ(o_i|q) = exp( Σ_t z_{i,t} )

**Changed against CISPO:** a smooth kernel replaces the cap. It acts on the ratio of the
*whole* answer, without GSPO's root. φ(1) = 1; the peak is at W = k/λ.

**Bounds.** k > 0 and λ > 0 have no unit. The pair for good answers, (2, 3), peaks at
W = 2/3 with 1.21; the pair for bad answers, (3, 2), peaks at W = 3/2 with 1.24.

**Departures.** The paper sums over an answer's tokens; here, as in TRL, all tokens of a
batch are averaged. `old_logp` is the sampler's, μ; TRL adds log(π_old/μ) to log W
instead. z is limited to ±20 and W to [1e-8, e^20], as in TRL 1.16 and Liger 0.8.5.
If Â varies within an answer, each token uses the pair of its own sign, as in TRL.
"""

import math

import torch

from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.cispo import CISPO
from refimpl.importance import LOG_RATIO_LIMIT as LIMIT
from refimpl.validation import Positive

LEAST = math.log(1e-8)


def objective(
    t: Tokens,
    *,
    k_pos: Positive = 2.0,
    lambda_pos: Positive = 3.0,
    k_neg: Positive = 3.0,
    lambda_neg: Positive = 2.0,
) -> Objective:
    """sg[φ(W)] Â log π_θ, with (k_pos, lambda_pos) where a token's Â ≥ 0."""
    log_w = t.z.detach().clamp(-LIMIT, LIMIT).sum(-1, keepdim=True)
    log_w, good = log_w.clamp(LEAST, LIMIT), t.advantages >= 0
    numbers = t.z.new_tensor([[k_pos, k_neg], [lambda_pos, lambda_neg]])  # its dtype
    k, rate = (torch.where(good, pos, neg) for pos, neg in numbers)
    phi = (k * log_w + rate * (1 - log_w.exp())).exp()
    return Objective(phi * t.advantages * t.logp)


VESPO = CISPO.child(
    name="vespo",
    title="VESPO",
    paper="Shen et al. 2026, 2602.10693",
    changed="a smooth weight of the whole answer's ratio, small far from 1 either way",
    objective=objective,
    one_ratio=True,
    anchor="sampler",
)
