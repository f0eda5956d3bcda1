"""DAPO: Decoupled Clip and Dynamic sAmpling Policy Optimization (2503.14476).

    J = (1/Σ_i|o_i|) Σ_i Σ_t min( r Â_i, clip(r, 1−ε_low, 1+ε_high) Â_i )     (Eq. 8)
    subject to 0 < #correct < G

**Changed against GRPO,** four things, each a switch:

- clip-higher: ε_high 0.28 above, ε_low 0.2 below, so that unlikely tokens may rise;
- token-level loss: every token weighs the same (`aggregation`);
- dynamic sampling: groups that are all right or all wrong are replaced by fresh ones
  until the batch is full (`TrainConfig.dynamic_sampling`, on for DAPO);
- overlong responses: a soft punishment before the limit (Eq. 13, `overlong_share`, on
  for DAPO), or their loss masked (`overlong_filtering`, off: most runs use one).

**Departures.** Eq. 8 divides by the tokens of a group (`group_token_mean`); every
framework, and our default, by those of the batch. The paper pays ±1 and we pay 0 or 1:
the punishment, at most 1, therefore weighs twice what it does there. No KL, as there.
"""

from refimpl.advantages import group_relative
from refimpl.algorithms import ppo
from refimpl.algorithms.base import Algorithm


def objective(
    logp, z, advantages, mask, *, epsilon_low=0.2, epsilon_high=0.28, dual_clip=None
):
    """PPO's objective with more room above 1 than below."""
    if epsilon_high < epsilon_low:
        raise ValueError(
            f"epsilon_low={epsilon_low} is above epsilon_high={epsilon_high}: DAPO's "
            "clip-higher leaves more room above 1 than below; swap the two, or use "
            "grpo with these bounds"
        )
    bounds = {"epsilon_low": epsilon_low, "epsilon_high": epsilon_high}
    return ppo.objective(logp, z, advantages, mask, dual_clip=dual_clip, **bounds)


DAPO = Algorithm(
    name="dapo",
    title="DAPO",
    paper="Yu et al. 2025, 2503.14476",
    parent="grpo",
    changed="clip-higher, token-level mean, dynamic sampling, overlong shaping",
    objective=objective,
    advantages=group_relative,
    aggregation="token_mean",
    trl="loss_type=dapo, epsilon_high=0.28 (no dynamic sampling)",
    verl="loss_agg_mode=token-mean, clip_ratio_high=0.28, algorithm.filter_groups",
    training={"dynamic_sampling": True, "overlong_share": 0.2},
)
