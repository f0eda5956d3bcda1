"""Estimators of KL(π_θ ‖ π_ref) from a sampled token, and divergences in full.

With d = log π_θ − log π_ref on a token sampled from π_θ (Schulman, "Approximating KL
divergence", 2020):

| name | value | mean under π_θ | as a differentiated loss, on-policy |
|---|---|---|---|
| `k1` | d | KL, exactly | gradient 0 in expectation: useless |
| `k2` | d²/2 | biased | ∇KL(π_θ ‖ π_ref) |
| `k3` | e^−d − 1 + d | KL, exactly; never negative | ∇KL(π_ref ‖ π_θ) |
| `k3+` | k3's | KL, exactly; never negative | ∇KL(π_θ ‖ π_ref), by k2's gradient |
| `unbiased_k3` | r · k3 | KL, exactly; never negative | ∇KL(π_θ ‖ π_ref) |

*In the reward* (RLHF's PPO) use k1: the score function then gives ∇KL(π_θ ‖ π_ref).
*In the loss* k3 is GRPO's choice (2402.03300, Eq. 4), `unbiased_k3` TRL's default and
`k3+` one of verl's. Off-policy, only `unbiased_k3` has the importance ratio it needs.
"""

import math
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.importance import LOG_RATIO_LIMIT, ratio


def k1(logp: Float[Tensor, "..."], ref_logp: Float[Tensor, "..."]) -> Tensor:
    """log(π_θ/π_ref): unbiased, high variance, may be negative. In nats."""
    return logp - ref_logp


def k2(logp: Float[Tensor, "..."], ref_logp: Float[Tensor, "..."]) -> Tensor:
    """½ log²(π_θ/π_ref): biased as a value, correct as a differentiated loss. Nats."""
    return (logp - ref_logp) ** 2 / 2


def k3(logp: Float[Tensor, "..."], ref_logp: Float[Tensor, "..."]) -> Tensor:
    """π_ref/π_θ − log(π_ref/π_θ) − 1 ≥ 0: GRPO's estimator (2402.03300, Eq. 4).

    In nats, and exact unless e^−d would overflow. Below d = −66 (in float32 and
    bfloat16; −532 in float64) the value is constant and has no gradient, so that its
    product with a ratio stays finite. A token to which π_ref gives probability 0 has
    the value of d = `LOG_RATIO_LIMIT`.
    """
    d = logp - ref_logp
    d = torch.where(d.isposinf(), LOG_RATIO_LIMIT, d)
    d = d.clamp(min=-0.75 * math.log(torch.finfo(d.dtype).max))
    return torch.expm1(-d) + d  # e^−d − 1 + d, without the cancellation near 0


def k3_plus(logp: Float[Tensor, "..."], ref_logp: Float[Tensor, "..."]) -> Tensor:
    """verl's `k3+`: k3's value with k2's gradient, on-policy ∇KL(π_θ ‖ π_ref). Nats."""
    d = logp - ref_logp  # where that is infinite, k3's value has no gradient either
    with_gradient = d.masked_fill(d.isinf(), 0.0) ** 2 / 2
    return k3(logp, ref_logp).detach() + with_gradient - with_gradient.detach()


def unbiased_k3(
    logp: Float[Tensor, "..."],
    ref_logp: Float[Tensor, "..."],
    old_logp: Float[Tensor, "..."],
) -> Tensor:
    """r · k3 with r = π_θ/π_old differentiated too: ∇KL(π_θ ‖ π_ref), also off-policy.

    E_old[r k3] is the KL itself (for one token), so its gradient is the KL's. TRL's
    default since 1.10 (`use_bias_correction_kl`); GRPO's paper prints k3 alone, whose
    gradient differs even at r = 1.
    """
    dtype = torch.promote_types(logp.dtype, torch.float32)
    return ratio(logp.to(dtype) - old_logp.detach().to(dtype)) * k3(logp, ref_logp)


def binary(logp: Float[Tensor, "..."], ref_logp: Float[Tensor, "..."]) -> Tensor:
    """p log p/q + (1−p) log (1−p)/(1−q): the KL of "this token or another", in nats.

    p and q are the probabilities. 1−p and 1−q come from expm1, so that they are exact
    near certainty, and are at least 1e-8, because a token that is certain in float32
    would give 0 · log 0. The result is clamped to ≥ 0. DPPO (2602.04879, Eq. 14),
    KPop and FlashREINFORCE bound this KL.
    """
    others, of_q = (-torch.expm1(x).clamp(max=-1e-8) for x in (logp, ref_logp))
    d = logp.exp() * (logp - ref_logp) + others * (others.log() - of_q.log())
    return d.clamp(min=0)


Divergence = Literal["reverse", "forward", "js"]


def divergence(
    logp: Float[Tensor, "*n V"],
    teacher_logp: Float[Tensor, "*n V"],
    kind: Divergence = "reverse",
    top_k: int | None = None,
    tail: bool = True,
) -> Float[Tensor, "*n"]:
    """Sum over the vocabulary how far π is from a teacher's π_T, in nats.

        reverse   KL(π ‖ π_T)
        forward   KL(π_T ‖ π)
        js        ½ KL(π ‖ m) + ½ KL(π_T ‖ m),   m = ½ (π + π_T); at most log 2

    `top_k` keeps the tokens that are likeliest under π, π_T or m, respectively, and
    `tail` counts all others as one more. Without it a sum may be negative.
    """
    # The mean of probabilities: that of log-probs is not a distribution.
    mixture = torch.stack([logp, teacher_logp]).logsumexp(0) - math.log(2)
    every = torch.stack([logp, teacher_logp, mixture])
    if top_k is not None and top_k < logp.shape[-1]:
        likely = every[("reverse", "forward", "js").index(kind)].topk(top_k).indices
        kept = likely.expand(3, *likely.shape)
        rest = every.scatter(-1, kept, -torch.inf).logsumexp(-1, keepdim=True)
        every = torch.cat([every.gather(-1, kept), rest][: 1 + tail], -1)

    def kl(p: Tensor, q: Tensor) -> Tensor:
        return (p.exp() * (p - q)).sum(-1)

    own, other, mixed = every
    if kind == "js":
        return (kl(own, mixed) + kl(other, mixed)) / 2
    return kl(own, other) if kind == "reverse" else kl(other, own)


ESTIMATORS = {
    "k1": lambda logp, ref_logp, _: k1(logp, ref_logp),
    "k2": lambda logp, ref_logp, _: k2(logp, ref_logp),
    "k3": lambda logp, ref_logp, _: k3(logp, ref_logp),
    "k3+": lambda logp, ref_logp, _: k3_plus(logp, ref_logp),
    "unbiased_k3": unbiased_k3,
}
"""The estimators of `loss_terms.KL`, as f(logp, ref_logp, old_logp)."""
Estimator: TypeAlias = Literal[tuple(ESTIMATORS)]  # type: ignore[valid-type]
