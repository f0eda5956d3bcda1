"""Mixture of experts: the formulas of router weights, and of how far a router moved.

In each sparse layer a *router* gives every token a distribution over E experts; the
token visits the k most probable, and their outputs are mixed by *router weights*. The
choice is discrete: a small change of the weights can send a token to another expert,
and then its log-prob jumps. `refimpl.moe` records what a model's routers do.
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
    """g_i = e^{s_i} / Σ_{j in experts} e^{s_j}; not `normalised`: Σ over all experts.

    R3 (2510.11370): with `experts` frozen, the logits s still carry the gradient.
    """
    weights = logits.softmax(-1, dtype=torch.float).gather(-1, experts)
    return weights / weights.sum(-1, keepdim=True) if normalised else weights


def overlap(
    old: Int[Tensor, "... k"], new: Int[Tensor, "... k"]
) -> Float[Tensor, "..."]:
    """The share of a token's old experts that it still visits, from 0 to 1."""
    return (old[..., :, None] == new[..., None, :]).any(-1).float().mean(-1)


GAMMA_MIN = 0.7
"""The least weight that a token keeps. Not published; that of a public copy of the
paper's code."""


def router_shift(
    logp: Float[Tensor, "... layers k"],
    old_logp: Float[Tensor, "... layers k"],
    floor: float = GAMMA_MIN,
) -> Float[Tensor, "..."]:
    """RSPO's γ (2510.23027): how far a token's router has moved, as a weight ≤ 1.

        γ = max( exp(−(1/L) Σ_ℓ (1/K) Σ_k |log r_φ(e_k) − log r_φold(e_k)|), γ_min )

    over the K experts that the *old* policy activated in each of L layers. With its
    gradient: `shifted` detaches it.
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
    """RSPO's shift: the (old_logp, weight) that any loss is then called with.

    γ in (0, 1] multiplies each token's ratio `"before_clip"`, r ← γ r, which is
    log π_old ← log π_old − log γ; or `"after_clip"` the objective, which is the
    weight: by its token's γ, or, where a response has `one_ratio`
    (`Algorithm.one_ratio`), by the geometric mean of its tokens' γ. γ is a constant.
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
