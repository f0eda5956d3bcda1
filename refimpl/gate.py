"""Your own method from one function: a gate on the token ratio.

    ∇J = (1/G) Σ_i (1/|o_i|) Σ_t  g(r, Â) · r · Â_i ∇log π_θ(o_{i,t})

The gate g is the share of a token's unclipped gradient that is kept. PPO's is 1 or 0,
SAPO's is a sech². The factor r is not part of g; otherwise it would count twice.
"""

import inspect
from collections.abc import Callable

import torch

from refimpl.algorithms.base import Algorithm, Objective, Tokens
from refimpl.algorithms.grpo import GRPO
from refimpl.importance import ratio
from refimpl.validation import UserError, guarded, shown

WITH_IF = (
    "the gate gets tensors with a number for every token, so `if`, `and`, `or`, `min` "
    "and `max` cannot decide for all tokens at once; write torch.where(advantages > 0, "
    "x, y) instead of `x if advantages > 0 else y`"
)

ADVANTAGES = {"a", "adv", "advs", "advantage", "advantages"}
RATIOS = {"r", "ratio", "ratios"}


@guarded
def from_gate(gate: Callable, name: str = "my gate") -> Algorithm:
    """Make an algorithm whose gate on r Â ∇log π_θ is `gate(r, advantages)`.

    `gate` gets two tensors (B, T) and returns g, (B, T); no gradient passes through
    it. `curves.curve`, `train` and the plots accept the result like any other method.

    Raises `UserError` if the gate does not take these arguments. The first loss raises
    `UserError` if the gate uses a Python `if` on a whole tensor, or if its result is
    not a tensor, has another shape, or is not finite.
    """
    try:
        bound = inspect.signature(gate).bind("r", "advantages")
    except (TypeError, ValueError) as error:  # a builtin has no signature
        raise UserError(f"gate must take (r, advantages): {error}") from None
    first, *rest = (name.lower() for name in bound.arguments)
    if first in ADVANTAGES or RATIOS.intersection(rest):
        raise UserError(
            f"gate must take (r, advantages) in this order, got a function of {first}, "
            + ", ".join(rest)
        )

    def objective(t: Tokens) -> Objective:
        r = ratio(t.z).detach()
        # A gate may change its arguments in place, or switch gradients off.
        with torch.enable_grad():
            try:
                g = gate(r.clone(), t.advantages.clone())
            except RuntimeError as error:
                if "Boolean value of Tensor" not in str(error):
                    raise
                raise UserError(WITH_IF) from None
        if not isinstance(g, torch.Tensor) or g.shape != r.shape:
            raise UserError(
                "the gate must return a tensor with one real number per token, shape "
                f"{tuple(r.shape)}, got {shown(g)}; such as torch.ones_like(r)"
            )
        g = torch.where(t.mask.bool(), g.detach(), 0.0)
        return Objective(g * r * t.advantages * t.logp)

    return GRPO.child(
        name=name,
        title=name,
        paper="yours",
        changed="your own gate",
        penalty=False,  # the gate multiplies Â
        objective=objective,
    )
