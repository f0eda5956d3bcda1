"""MiniRL: a loss that stays a first-order approximation (2512.01374).

    ∇J = E[ Σ_t M_t (π_θ/μ) (R − R̄) ∇log π_θ(o_t) ],     r = π_θ/π_old
    M_t = 0 where Â > 0, r > 1+ε_high or Â < 0, r < 1−ε_low,     1 elsewhere

**Changed against GRPO:** no division by a length or by the std.

**Bounds.** ε is 0.2 below and 0.27 above, as quoted in DPPO's App. E.

**Departures.** GRPO's min has the gradient of M_t r. The other factor of π_θ/μ, which
is π_old/μ, is a separate weight: `corrections={"token_truncate": 5}`, off by default.
The paper's R2 and R3 are the trainer's `replay`.
"""

from functools import partial

from refimpl.advantages import group_centred
from refimpl.algorithms.grpo import GRPO
from refimpl.normalisers import seq_mean_token_sum

MINIRL = GRPO.child(
    name="minirl",
    title="MiniRL",
    paper="Zheng et al. 2025, 2512.01374",
    changed="a plain sum over tokens; no division by the group's std",
    objective=partial(GRPO.objective, epsilon_high=0.27),
    advantages=group_centred,
    normaliser=seq_mean_token_sum,
)
