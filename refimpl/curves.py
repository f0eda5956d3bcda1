"""Objective and gradient coefficient against the ratio, from the code that trains.

A curve is not drawn from a second formula. Ratios go into the objective as log-probs,
and autograd computes the slope, so a curve shows any mistake of the implementation.
"""

from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from refimpl.algorithms import Algorithm, Tokens, get
from refimpl.validation import UserError, guarded

GRID = torch.linspace(0.021, 2.996, 596, dtype=torch.float64)
"""Ratios between kinks such as 0.8 and 1.2, where rounding would decide the slope."""


class Curve(NamedTuple):
    """`coefficient` is c in ∇J = c · Â · ∇log π_θ, as a function of the ratio r.

    It is gate × ratio: c = g · r. DeepSeekMath (2402.03300, §5.2.1) calls the factor of
    ∇log π_θ, here c · Â, the gradient coefficient.
    """

    ratio: Float[Tensor, " N"]
    objective: Float[Tensor, " N"]
    coefficient: Float[Tensor, " N"]

    @property
    def gate(self) -> Float[Tensor, " N"]:
        """g = c / r: 1 where the token's whole gradient passes, 0 where none does."""
        return self.coefficient / self.ratio


@guarded
@torch.inference_mode(False)  # the caller may have switched gradients off
def curve(
    algorithm: str | Algorithm,
    advantage: float = 1.0,
    ratios: Float[Tensor, " N"] | None = None,
    old: Annotated[float, Field(gt=0, le=1)] = 1.0,
    **hyperparameters,
) -> Curve:
    """Compute the curve of a method on one-token responses, in float64.

    `old` is the probability of the token under π_old, on which a gate on probabilities
    depends. Raises `UserError` if the advantage is 0 or a ratio is not > 0.
    """
    algorithm = get(algorithm) if isinstance(algorithm, str) else algorithm
    if ratios is None:  # no probability exceeds 1, if one is given
        ratios = GRID[GRID * old <= 1] if old < 1 else GRID
    if advantage == 0 or (ratios <= 0).any():
        raise UserError("ratios must be > 0, and the advantage must not be 0")
    ones = torch.ones_like(ratios, dtype=torch.float64)[:, None]
    logp = (old * ratios.double()).log()[:, None].requires_grad_()
    tokens = Tokens(logp, (old * ones).log(), advantage * ones, ones, ones)
    values = algorithm.check_hyperparameters(hyperparameters)
    value = algorithm.checked_objective(tokens, values).value
    (slope,) = torch.autograd.grad(value.sum(), logp)
    return Curve(ratios, value.detach()[:, 0], slope[:, 0] / advantage)
