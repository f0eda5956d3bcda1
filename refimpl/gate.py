"""Your own method from one function: a gate on the token ratio.

    ∇J = (1/G) Σ_i (1/|o_i|) Σ_t  g(r, Â) · r · Â_i ∇log π_θ(o_{i,t})

The gate g is the share of a token's unclipped gradient that is kept. PPO's is 1 or 0,
SAPO's is a sech². The factor r is not part of g; otherwise it would count twice.
"""

import inspect
import warnings
from collections.abc import Callable

import torch

from refimpl.algorithms import ALGORITHMS, Algorithm, Objective, Tokens
from refimpl.algorithms.grpo import GRPO
from refimpl.importance import ratio
from refimpl.validation import UserError, guarded, one_line, shown

ADVANTAGES = {"a", "adv", "advs", "advantage", "advantages"}
RATIOS = {"r", "ratio", "ratios"}


@guarded
def from_gate(gate: Callable, name: str = "my gate") -> Algorithm:
    """Make an algorithm whose gate on r Â ∇log π_θ is `gate(r, advantages)`.

    `gate` gets two tensors (B, T) and returns g, (B, T); no gradient passes through
    it. `curves.curve`, `train` and the plots accept the result like any other method.

    Raises `UserError` if the gate does not take these arguments, or if `name` is that
    of a method of this package. A loss raises `UserError` if the gate fails, or if its
    result is not a tensor, has another shape, or is not finite. The first loss warns
    if the gate is negative at every token with Â > 0, or at every one with Â < 0.
    """
    if name in ALGORITHMS:
        raise UserError(f"the name {name!r} belongs to a method here; give another one")
    try:
        bound = inspect.signature(gate).bind("r", "advantages")
    except (TypeError, ValueError) as error:  # a builtin has no signature
        raise UserError(f"gate must take (r, advantages): {error}") from None
    first, *rest = (name.lower() for name in bound.arguments)
    if first in ADVANTAGES or RATIOS.intersection(rest):
        got = ", ".join([first, *rest])
        raise UserError(f"gate must take (r, advantages) in this order, got ({got})")
    seen = False

    def objective(t: Tokens) -> Objective:
        nonlocal seen
        r = ratio(t.z).detach()
        # A gate may change its arguments in place, or switch gradients off.
        with torch.enable_grad():
            try:
                g = gate(r.clone(), t.advantages.clone())
            except Exception as error:
                raise UserError(
                    f"the gate raised {one_line(error)}; it gets tensors with a number "
                    "for every token, so use torch functions: torch.exp for math.exp, "
                    "torch.where(advantages > 0, x, y) for `x if advantages > 0 else y`"
                ) from error
        if not isinstance(g, torch.Tensor) or g.shape != r.shape:
            raise UserError(
                "the gate must return a tensor with one real number per token, shape "
                f"{tuple(r.shape)}, got {shown(g)}; such as torch.ones_like(r)"
            )
        g = torch.where(t.mask.bool(), g.detach(), 0.0)
        if not seen:  # once, because a GPU has to wait for it
            seen = True
            sides = {"good": t.advantages > 0, "bad": t.advantages < 0}
            for kind, side in sides.items():
                if side.any() and (g[side] < 0).all():
                    warnings.warn(  # the number tells a second gate from the first
                        f"the gate is negative at every {kind} token (its mean there "
                        f"is {g[side].mean():.3g}), which is then pushed the wrong "
                        "way (Â and r are not part of a gate)",
                        stacklevel=1,
                    )
        return Objective(g * r * t.advantages * t.logp)

    about = {"title": name, "paper": "yours", "changed": "your own gate"}
    # There is no penalty beside the gate, which multiplies Â.
    return GRPO.child(name=name, objective=objective, penalty=False, **about)
