"""DAPO: Decoupled Clip and Dynamic sAmpling Policy Optimization (2503.14476).

    J = (1/Σ_i|o_i|) Σ_i Σ_t min( r Â_i, clip(r, 1−ε_low, 1+ε_high) Â_i )     (Eq. 8)
    subject to 0 < #correct < G

**Changed against GRPO,** four things, each a switch:

- clip-higher: ε_high = 0.28 and ε_low = 0.2, so that unlikely tokens have room to rise;
- token-level loss: every token has the same weight (`normaliser`);
- dynamic sampling: groups that are all right or all wrong are replaced by fresh ones
  until the batch is full (`TrainConfig.dynamic_sampling`, on for DAPO);
- overlong responses: a soft punishment before the limit (Eq. 13, `overlong_share`, on
  for DAPO), or masking their loss (`overlong_filtering`, off: most runs use only one).

**Departures.** Eq. 8 divides by the tokens of a group (`group_token_mean`); every
framework, and our default, divides by the tokens of the batch. The paper's rewards are
±1 and ours are 0 or 1, so that the punishment, at most 1, weighs twice as much here.
There is no KL, as in the paper.
"""

from functools import partial

from refimpl.algorithms.grpo import GRPO
from refimpl.normalisers import token_mean

DAPO = GRPO.child(
    name="dapo",
    title="DAPO",
    paper="Yu et al. 2025, 2503.14476",
    changed="clip-higher, token-level mean, dynamic sampling, overlong shaping",
    objective=partial(GRPO.objective, epsilon_high=0.28),
    normaliser=token_mean,
    training={"dynamic_sampling": True, "overlong_share": 0.2},
)
