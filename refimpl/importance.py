"""Importance ratios: how much more likely a token has become since it was sampled.

All log-probabilities are in nats. Everything works on the log-ratio

    z_{i,t} = log π_θ(o_{i,t}|·) − log π_old(o_{i,t}|·)

because differences of log-probs stay small where ratios overflow.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

Mask = Shaped[Tensor, "B T"]
"""1 on response tokens, 0 elsewhere: floats, ints or bools."""

LOG_RATIO_LIMIT = 20.0
"""|z| beyond which `exp` is held constant: e^±20 ≈ 4.9e8 and 2.1e-9.

No paper has this. Without it a ratio of e^100 is inf in float32, and inf · 0 in
the backward pass is NaN even where a clip discards the value. Beyond the limit the
ratio has no gradient. verl uses the same number.
"""


def log_ratio(
    logp: Float[Tensor, "B T"], old_logp: Float[Tensor, "B T"], mask: Mask
) -> Float[Tensor, "B T"]:
    """z = log π_θ − log π_old on response tokens, exactly 0 elsewhere.

    In nats. Half precision is converted to float32 first. `old_logp` is detached,
    because π_old is a constant of the update. Padding may hold any number, even NaN.
    """
    dtype = torch.promote_types(logp.dtype, torch.float32)
    difference = logp.to(dtype) - old_logp.detach().to(dtype)
    return torch.where(mask.bool(), difference, 0.0)


def ratio(z: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """r = exp(z), finite for every z (see `LOG_RATIO_LIMIT`)."""
    return z.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


@torch.no_grad()
def largest_deviation(z: Float[Tensor, "B T"]) -> Float[Tensor, ""]:
    """max |r − 1|: how stale the batch is. 0 if there are no tokens."""
    deviation = torch.expm1(z.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)).abs()
    return deviation.amax() if z.numel() else z.new_zeros(())


def sequence_log_ratio(z: Float[Tensor, "B T"], mask: Mask) -> Float[Tensor, " B"]:
    """log s_i = (1/|o_i|) Σ_t z_{i,t}: the log of the *geometric mean* ratio.

    GSPO (2507.18071), Eq. 7. Without the 1/|o_i| the ratio grows with length and
    no fixed clip range fits short and long responses alike. An empty row gives 0.
    """
    mask = mask.to(z)  # half precision counts to 256, or to 2048
    return (z * mask).sum(-1) / mask.sum(-1).clamp(min=1)
