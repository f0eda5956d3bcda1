"""Mixture of experts: the formulas of router weights and of RSPO's router shift.

In each sparse layer a *router* gives every token a distribution over E experts. The
token visits the k most probable ones, and their outputs are mixed with the *router
weights*. This choice is discrete: a small change of the parameters can send a token to
another expert, and then its log-prob jumps. `recorder` records a model's routers.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from refimpl.importance import Mask, sequence_log_ratio
from refimpl.validation import UserError


def router_weights(
    logits: Float[Tensor, "N E"], experts: Int[Tensor, "N k"], normalised: bool = True
) -> Float[Tensor, "N k"]:
    """g_i = e^{s_i} / Σ_{j in experts} e^{s_j}; not `normalised`: Σ_j over all E.

    As in R3 (2510.11370), the logits s carry a gradient even if `experts` are frozen.
    """
    weights = logits.softmax(-1, dtype=torch.float).gather(-1, experts)
    return weights / weights.sum(-1, keepdim=True) if normalised else weights


def overlap(
    old: Int[Tensor, "... k"], new: Int[Tensor, "... k"]
) -> Float[Tensor, "..."]:
    """Return the share of a token's old experts that it still visits, from 0 to 1."""
    return (old[..., :, None] == new[..., None, :]).any(-1).float().mean(-1)


GAMMA_MIN = 0.7
"""The smallest weight that a token can get. The paper does not publish it; this is the
value in a public copy of the paper's code."""


def router_shift(
    logp: Float[Tensor, "... layers k"],
    old_logp: Float[Tensor, "... layers k"],
    floor: float = GAMMA_MIN,
) -> Float[Tensor, "..."]:
    """RSPO's γ (2510.23027): a weight ≤ 1 that falls as a token's router moves away.

        γ = max( exp(−(1/L) Σ_ℓ (1/K) Σ_k |log r_φ(e_k) − log r_φold(e_k)|), γ_min )

    over the K experts that the *old* policy activated in each of L layers. The result
    has a gradient; `shifted` detaches it.
    """
    distance = (logp - old_logp).abs().mean((-1, -2))
    return (-distance).exp().clamp(min=floor)


Placement = Literal["before_clip", "after_clip"]
PLACEMENTS = get_args(Placement)


def shifted(
    old_logp: Float[Tensor, "B T"],
    weight: Shaped[Tensor, "B T"],
    mask: Mask,
    gamma: Float[Tensor, "B T"],
    placement: Placement = "before_clip",
    one_ratio: bool = True,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Apply RSPO's shift: return the (old_logp, weight) to call any loss with.

    `"before_clip"` multiplies each token's ratio by its γ in (0, 1], r ← γ r, by
    setting log π_old ← log π_old − log γ. `"after_clip"` multiplies the weight instead:
    by the token's γ, or, for methods with `one_ratio` per response
    (`Algorithm.one_ratio`), by the geometric mean of the response's γ. No gradient
    passes through γ.
    """
    if placement not in PLACEMENTS:
        allowed = " or ".join(map(repr, PLACEMENTS))
        raise UserError(f"placement must be {allowed}, got {placement!r}")
    shift = torch.where(mask.bool(), gamma.detach(), 1.0).log()
    if placement == "before_clip":
        return old_logp - shift, weight
    if one_ratio:
        shift = sequence_log_ratio(shift, mask)[:, None]
    return old_logp, weight * shift.exp()
