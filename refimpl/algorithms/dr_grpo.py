"""Dr. GRPO: GRPO Done Right (2503.20783).

    J = (1/G) Σ_i Σ_t min( r Ã_i, clip(r, 1−ε, 1+ε) Ã_i ),     Ã_i = R_i − mean R

**Changed against GRPO:** two divisions are gone. Without 1/|o_i| a token has the same
weight in a short response and in a long one; without 1/std R a group has more weight
the more its rewards differ.

**Departures.** The printed sum over tokens would make the step grow with length; the
paper's own code divides it by a constant (3000 tokens in that code, `max_length` here,
by default the trainer's limit), and so do we. β = 0, as in the paper. Its script takes
8 updates per rollout (1,024 answers in batches of 128); we take 4 by default.
"""

from refimpl.advantages import group_centred
from refimpl.algorithms.grpo import GRPO
from refimpl.normalisers import constant

DR_GRPO = GRPO.child(
    name="dr_grpo",
    title="Dr. GRPO",
    paper="Liu et al. 2025, 2503.20783",
    changed="no division by |o|, none by the group's std",
    advantages=group_centred,
    normaliser=constant,
)
