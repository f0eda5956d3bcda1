"""Your own method from one function: a gate on the token ratio.

    ∇J = (1/G) Σ_i (1/|o_i|) Σ_t  g(r, Â) · r · Â_i ∇log π_θ(o_{i,t})

The gate g says how much of a token's unclipped gradient is kept. PPO's is 1 or 0,
SAPO's sech²; r stays outside, or it would count twice.
"""

import inspect
from collections.abc import Callable

import torch

from refimpl.advantages import group_relative
from refimpl.algorithms.base import Algorithm, Objective, Tokens
from refimpl.arguments import guarded
from refimpl.importance import ratio
from refimpl.normalisers import seq_mean_token_mean


@guarded
def from_gate(gate: Callable, name: str = "my gate") -> Algorithm:
    """An algorithm whose gate on r Â ∇log π_θ is `gate(r, advantages)`.

    `gate` gets two tensors (B, T) and returns g, (B, T); no gradient passes
    through it. `curves.curve`, `train` and the plots take the result as any other.

    Raises `TypeError` if the gate cannot be called so; `TypeError` or `ValueError`, at
    the first loss, if it returns no tensor, another shape, or a number that is not
    finite.
    """
    try:
        inspect.signature(gate).bind("r", "advantages")
    except TypeError as error:
        raise TypeError(f"gate must take (r, advantages): {error}") from None

    def objective(t: Tokens) -> Objective:
        r, response = ratio(t.z).detach(), t.mask.bool()
        g = gate(r, t.advantages)
        if not isinstance(g, torch.Tensor):
            raise TypeError(
                f"the gate must return a tensor, got {type(g).__name__}; for a "
                "constant use torch.ones_like(r)"
            )
        if g.shape != r.shape:
            raise ValueError(
                f"the gate must return one number per token, shape {tuple(r.shape)}, "
                f"got {tuple(g.shape)}"
            )
        bad = ~torch.isfinite(g) & response
        if bad.any():
            raise ValueError(
                f"the gate is {g[bad][0].item()} at r = {r[bad][0].item():.3g}, "
                f"advantage {t.advantages[bad][0].item():.3g}: it must be finite for "
                "every r > 0; torch.where computes both branches, so clamp r first"
            )
        g = torch.where(response, g.detach(), 0.0)
        return Objective(g * r * t.advantages * t.logp)

    return Algorithm(
        name=name,
        title=name,
        paper="yours",
        parent="grpo",
        changed="your own gate",
        objective=objective,
        advantages=group_relative,
        normaliser=seq_mean_token_mean,
        trl="override GRPOTrainer._compute_loss",
        verl="register_policy_loss",
    )
