"""Objective and gradient coefficient against the ratio, from the code that trains.

A curve is not drawn from a formula: ratios go in as log-probs, the real objective comes
out, and autograd takes its slope. If the implementation drifts, so does the picture.
"""

from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from refimpl.algorithms import Algorithm, Tokens, get
from refimpl.validation import UserError, guarded

GRID = torch.linspace(0.021, 2.996, 596, dtype=torch.float64)
"""Ratios that miss 0.8, 1.2 and the like, where rounding decides the slope."""


class Curve(NamedTuple):
    """`coefficient` is c in ∇J = c · Â · ∇log π_θ, as a function of the ratio r.

    It is gate × ratio: c = g · r. DeepSeekMath (2402.03300, §5.2.1) calls what stands
    before ∇log π_θ, here c · Â, the gradient coefficient.
    """

    ratio: Float[Tensor, " N"]
    objective: Float[Tensor, " N"]
    coefficient: Float[Tensor, " N"]

    @property
    def gate(self) -> Float[Tensor, " N"]:
        """g = c / r: 1 where the token's whole gradient passes, 0 where none does."""
        return self.coefficient / self.ratio


@guarded
@torch.inference_mode(False)  # so that there is a slope, wherever it is asked for
def curve(
    algorithm: str | Algorithm,
    advantage: float = 1.0,
    ratios: Float[Tensor, " N"] | None = None,
    old: Annotated[float, Field(gt=0, le=1)] = 1.0,
    **hyperparameters,
) -> Curve:
    """One-token responses with these ratios, in float64. The advantage may not be 0.

    `old` is what π_old gave the token: a gate on probabilities depends on it.
    """
    algorithm = get(algorithm) if isinstance(algorithm, str) else algorithm
    ratios = GRID if ratios is None else ratios
    if advantage == 0 or (ratios <= 0).any():
        raise UserError("ratios must be > 0, and the advantage must not be 0")
    one = torch.ones_like(ratios, dtype=torch.float64)[:, None]
    logp = (old * ratios.double()).log()[:, None].requires_grad_()
    tokens = Tokens(logp, (old * one).log(), advantage * one, one, one)
    given = algorithm.check_hyperparameters(hyperparameters)
    value = algorithm.checked_objective(tokens, given).value
    (slope,) = torch.autograd.grad(value.sum(), logp)
    return Curve(ratios, value.detach()[:, 0], slope[:, 0] / advantage)
