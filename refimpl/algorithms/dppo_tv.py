"""DPPO, binary total variation (2602.04879, Eq. 11–13): a bound on a probability.

    J = (1/Σ_i|o_i|) Σ_i Σ_t M sg[min(r, max_ratio)] Â_i log π_θ(o_{i,t}),   r = π_θ/μ
    M = 1[π_θ − μ ≤ δ_high] where Â > 0,   1[π_θ − μ ≥ −δ_low] elsewhere

**Changed against CISPO:** a token is dropped if its *probability* has moved too far: at
μ = 0.001 the ratio may reach 201, at μ = 0.5 only 1.4.

**Bounds.** δ is a difference of probabilities. The paper uses 0.15 in App. C; in App. E
it uses 0.2 and a cap of 5 on r (App. C has no cap; the authors' recipe for verl has
1e4). Its §5.4 finds that a cap as low as 3 makes training less stable. Our cap of 20 is
verl's.

**Departures.** `old_logp` is the sampler's, μ; verl takes the log-probs that it is
given. Eq. 11 is M r Â, which has this gradient up to the cap; the form above is verl
0.9.1's `dppo_tv`, whose cap is `clip_ratio_c`. The paper does not divide by a std, and
sums over tokens: `advantage="dr_grpo"`, `normaliser="seq_mean_token_sum"`. We keep the
parent's `group_relative` and `token_mean`, as in the stored runs.
"""

from jaxtyping import Float
from torch import Tensor

from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.cispo import CISPO, MaxRatio
from refimpl.algorithms.ppo import stopped
from refimpl.importance import ratio
from refimpl.validation import Weight


def objective(
    t: Tokens,
    *,
    delta_low: Weight = 0.2,
    delta_high: Weight = 0.2,
    max_ratio: MaxRatio = 20.0,
) -> Objective:
    """M sg[min(r, max_ratio)] Â log π_θ"""
    return bounded(t, change(t), delta_low, delta_high, max_ratio)


def change(t: Tokens) -> Float[Tensor, "B T"]:
    """π_θ − μ"""
    return t.logp.exp() - t.old_logp.exp()


def bounded(
    t: Tokens,
    moved: Float[Tensor, "B T"],
    delta_low: float,
    delta_high: float,
    max_ratio: float,
) -> Objective:
    """M sg[min(r, max_ratio)] Â log π_θ; `moved` is > 0 for a token that has risen."""
    low, high = stopped(moved.detach(), t.advantages, -delta_low, delta_high)
    r = ratio(t.z).detach().clamp(max=max_ratio)
    return Objective((r * t.advantages * t.logp).masked_fill(low | high, 0), low, high)


DPPO_TV = CISPO.child(
    name="dppo_tv",
    title="DPPO-TV",
    paper="Qi et al. 2026, 2602.04879",
    changed="a token is dropped where its probability has moved on by more than δ",
    objective=objective,
    anchor="sampler",
)
