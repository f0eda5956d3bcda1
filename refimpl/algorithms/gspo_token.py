"""GSPO-token (2507.18071, Eq. 13–14): GSPO for advantages that vary per token.

    J = (1/G) Σ_i (1/|o_i|) Σ_t min( s_{i,t} Â_{i,t}, clip(s_{i,t}, …) Â_{i,t} )
    s_{i,t} = sg[s_i] · π_θ(o_{i,t}) / sg[π_θ(o_{i,t})]

**Changed against GSPO:** the value of s_{i,t} is s_i, but its gradient is that of its
own token. With one Â per response the two are the same in value and in gradient.

**Departures.** None.
"""

from refimpl.advantages import group_relative
from refimpl.algorithms import ppo
from refimpl.algorithms.base import Algorithm
from refimpl.algorithms.gspo import warn_of_token_scale
from refimpl.importance import gspo_token_log_ratio


def objective(
    logp, z, advantages, mask, *, epsilon_low=3e-4, epsilon_high=4e-4, dual_clip=None
):
    """PPO's objective, with log s_{i,t} for the log-ratio."""
    warn_of_token_scale(epsilon_low, epsilon_high)
    bounds = {"epsilon_low": epsilon_low, "epsilon_high": epsilon_high}
    s = gspo_token_log_ratio(logp, z, mask)
    return ppo.objective(logp, s, advantages, mask, dual_clip=dual_clip, **bounds)


GSPO_TOKEN = Algorithm(
    name="gspo_token",
    title="GSPO-token",
    paper="Zheng et al. 2025, 2507.18071",
    parent="gspo",
    changed="the same value, but a token's own gradient and advantage",
    objective=objective,
    advantages=group_relative,
    aggregation="seq_mean_token_mean",
    trl="none: importance_sampling_level is token or sequence",
    verl="policy_loss.loss_mode=gspo (verl has this form under that name)",
    one_ratio=True,
)
