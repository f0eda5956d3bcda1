"""GMPO: Geometric-Mean Policy Optimization (2507.20673).

    J = (1/G) Σ_i sgn Â_i [Π_t |min(r Â_i, clip(r, e^−ε_low, e^ε_high) Â_i)|]^(1/|o_i|)
      = (1/G) Σ_i Â_i exp( (1/|o_i|) Σ_t z'_{i,t} ),     z' = z clipped on one side

**Changed against GRPO:** the geometric mean of the token ratios replaces the arithmetic
one, so that one extreme token cannot dominate its response. Clipped tokens leave the
gradient but stay in the mean. Without its clip GMPO *is* GSPO: the two differ in where
they clip, and in how wide their intervals are.

**Bounds** are on the log-ratio: 0.4 lets r move in (0.67, 1.49). The clip is one-sided
like PPO's: z' = min(z, ε_high) where Â > 0, max(z, −ε_low) where Â < 0.

**Departures.** None.
"""

import torch

from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.grpo import GRPO
from refimpl.algorithms.ppo import stopped
from refimpl.importance import ratio, sequence_log_ratio
from refimpl.validation import Positive


def objective(
    t: Tokens, *, epsilon_low: Positive = 0.4, epsilon_high: Positive = 0.4
) -> Objective:
    """Â exp(mean_t z'),   z' = min(z, ε_high) if Â > 0, max(z, −ε_low) if Â < 0."""
    good, bad = t.advantages > 0, t.advantages < 0
    clipped = torch.where(good, t.z.clamp(max=epsilon_high), t.z)
    clipped = torch.where(bad, clipped.clamp(min=-epsilon_low), clipped)
    s = ratio(sequence_log_ratio(clipped, t.mask)[:, None])  # (B, 1)
    return Objective(
        s * t.advantages, *stopped(t.z, t.advantages, -epsilon_low, epsilon_high)
    )


GMPO = GRPO.child(
    name="gmpo",
    title="GMPO",
    paper="Zhao et al. 2025, 2507.20673",
    changed="geometric mean of clipped token ratios; bounds on the log-ratio",
    objective=objective,
    one_ratio=True,
)
