"""GSPO: Group Sequence Policy Optimization (2507.18071, Eq. 5–7).

    J = (1/G) Σ_i min( s_i Â_i, clip(s_i, 1−ε_low, 1+ε_high) Â_i )
    s_i = ( π_θ(o_i|q) / π_old(o_i|q) )^{1/|o_i|} = exp( (1/|o_i|) Σ_t z_{i,t} )

**Changed against GRPO:** one ratio a response, the geometric mean of its tokens'. It is
clipped as a whole: a response keeps every token's gradient or loses every one.

**Scale.** Averaging |o_i| log-ratios makes s_i far narrower than r, hence the paper's
ε of 3e-4 and 4e-4. At ε = 0.2 almost nothing is ever clipped: a warning says so.

**Departures.** None in the loss. Where advantages differ within a response, this form
averages them away; GSPO-token is the one to use.
"""

import warnings

from refimpl.advantages import group_relative
from refimpl.algorithms import ppo
from refimpl.algorithms.base import Algorithm
from refimpl.importance import sequence_log_ratio

TOKEN_SCALE = 0.1
"""An ε as large as this was meant for token ratios (the papers: 3e-4 against 0.2)."""


def objective(
    logp, z, advantages, mask, *, epsilon_low=3e-4, epsilon_high=4e-4, dual_clip=None
):
    """PPO's objective, with the response's log-ratio at every token."""
    warn_of_token_scale(epsilon_low, epsilon_high)
    bounds = {"epsilon_low": epsilon_low, "epsilon_high": epsilon_high}
    s = sequence_log_ratio(z, mask)[:, None].expand_as(z)
    return ppo.objective(logp, s, advantages, mask, dual_clip=dual_clip, **bounds)


def warn_of_token_scale(epsilon_low: float, epsilon_high: float) -> None:
    if max(epsilon_low, epsilon_high) >= TOKEN_SCALE:
        warnings.warn(
            f"epsilon_low={epsilon_low}, epsilon_high={epsilon_high} are bounds for "
            "token ratios. GSPO clips a geometric mean over a whole response; its "
            "paper uses 3e-4 and 4e-4, and at 0.2 hardly anything is ever clipped",
            stacklevel=2,
        )


GSPO = Algorithm(
    name="gspo",
    title="GSPO",
    paper="Zheng et al. 2025, 2507.18071",
    parent="grpo",
    changed="one ratio a response: the geometric mean, clipped as a whole",
    objective=objective,
    advantages=group_relative,
    aggregation="seq_mean_token_mean",
    trl="loss_type=grpo, importance_sampling_level=sequence, "
    "epsilon=3e-4, epsilon_high=4e-4",
    verl="policy_loss.loss_mode=gspo, loss_agg_mode=seq-mean-token-mean, "
    "clip_ratio_low=3e-4, clip_ratio_high=4e-4",
    one_ratio=True,
)
