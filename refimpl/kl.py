"""Three estimators of KL(π_θ ‖ π_ref), and the two places to put them.

With d = log π_θ − log π_ref on a token sampled from π_θ (Schulman, "Approximating KL
divergence", 2020):

| name | value | mean under π_θ | as a differentiated loss, on-policy |
|---|---|---|---|
| `k1` | d | KL, exactly | gradient 0 in expectation: useless |
| `k2` | d²/2 | biased | ∇KL(π_θ ‖ π_ref) |
| `k3` | e^−d − 1 + d | KL, exactly; never negative | ∇KL(π_ref ‖ π_θ) |

*In the reward* (RLHF's PPO) use k1: the score function then gives ∇KL(π_θ ‖ π_ref).
*In the loss* k3 is GRPO's choice (2402.03300, Eq. 4) and k2 the one whose gradient is
the KL's. Off-policy, each also wants the importance ratio.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.importance import LOG_RATIO_LIMIT


def k1(logp: Float[Tensor, "..."], ref_logp: Float[Tensor, "..."]) -> Tensor:
    """log(π_θ/π_ref): unbiased, high variance, may be negative. In nats."""
    return logp - ref_logp


def k2(logp: Float[Tensor, "..."], ref_logp: Float[Tensor, "..."]) -> Tensor:
    """½ log²(π_θ/π_ref): biased as a value, right as a differentiated loss."""
    return (logp - ref_logp) ** 2 / 2


def k3(logp: Float[Tensor, "..."], ref_logp: Float[Tensor, "..."]) -> Tensor:
    """π_ref/π_θ − log(π_ref/π_θ) − 1 ≥ 0: GRPO's estimator (2402.03300, Eq. 4).

    The log-ratio is clamped at ±`LOG_RATIO_LIMIT` so that e^−d stays finite.
    """
    d = (logp - ref_logp).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.expm1(-d) + d  # e^−d − 1 + d, without the cancellation near 0


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def token_rewards(
    scores: Float[Tensor, " B"],
    logp: Float[Tensor, "B T"],
    ref_logp: Float[Tensor, "B T"],
    mask: Float[Tensor, "B T"],
    beta: float,
) -> Float[Tensor, "B T"]:
    """KL in the reward: r_t = −β (log π_rollout − log π_ref) + 1[t = last] · score.

    The RLHF form of PPO (openai/lm-human-preferences). Detached, and constant over
    the updates of one rollout: `logp` is the policy that sampled. β in reward units
    per nat. An empty row gets no score.
    """
    penalty = torch.where(mask.bool(), k1(logp, ref_logp), 0.0)
    position = torch.arange(mask.shape[1], device=mask.device)
    last = position == mask.sum(-1, keepdim=True) - 1
    return (last * scores[:, None] - beta * penalty).detach()
