"""LUSPO: Length-Unbiased Sequence Policy Optimization (2602.05261).

    J = (1/G) Σ_i |o_i| min( s_i Â_i, clip(s_i, 1−ε_low, 1+ε_high) Â_i )

**Changed against GSPO:** an answer's term is multiplied by its length, which cancels
the division by |o_i| in the gradient of the geometric mean.

**Bounds.** ε is the distance of a geometric mean from 1, about a hundredth of GRPO's.

**Departures.** None known, but we have not read the paper's own text. Its ε of 2e-3 and
2.5e-3 (§5.1) are taken from TRL's citation.
"""

from functools import partial

from refimpl.algorithms.gspo import GSPO
from refimpl.normalisers import seq_mean_token_sum

LUSPO = GSPO.child(
    name="luspo",
    title="LUSPO",
    paper="Liu et al. 2026, 2602.05261",
    changed="an answer's term is multiplied by its length",
    objective=partial(GSPO.objective, epsilon_low=2e-3, epsilon_high=2.5e-3),
    normaliser=seq_mean_token_sum,
)
