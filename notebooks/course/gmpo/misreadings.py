"""Misreadings of GMPO: chapter 08."""

import torch

from course.kit.misreading import Misreading
from course.kit.plain import clipped_logs


def gmpo(z, advantage):
    """Â exp(mean of the clipped log-ratios) for one response; z is (T,)."""
    return advantage * clipped_logs(z, advantage).mean().exp()


def gmpo_with_offsets_for_bounds(z, advantage):
    """clip(r, ε_low, ε_high) with DAPO's 0.2 and 0.28 put in as they stand."""
    r = z.exp()
    smaller = torch.minimum(r * advantage, r.clamp(0.2, 0.28) * advantage)
    return smaller.abs().log().mean().exp() * advantage.sign()


def gmpo_without_clipped_tokens(z, advantage):
    """The geometric mean over the tokens that were not clipped."""
    free = clipped_logs(z, advantage) == z
    return advantage * z[free].mean().exp()


def mean_of_objectives(values):
    """|J| of a batch: signs may cancel, |(1/G) Σ_i J_i|."""
    return values.mean().abs()


def mean_of_sizes(values):
    """(1/G) Σ_i |J_i|: what AM–GM bounds, unclipped or under one clip."""
    return values.abs().mean()


MISREADINGS = [
    Misreading(
        "gmpo_bounds_are_offsets",
        "GMPO clips r to (ε_low, ε_high), so DAPO's 0.2 and 0.28 can be kept.",
        "Its bounds are absolute, e^−0.4 and e^0.4. With 0.2 and 0.28 for bounds, a "
        "ratio of 1 is far outside, and good tokens lose their gradient at once.",
        gmpo_with_offsets_for_bounds,
        gmpo,
    ),
    Misreading(
        "gmpo_drops_clipped_tokens",
        "A clipped token is left out of the geometric mean.",
        "It leaves the gradient and stays in the mean, at its bound.",
        gmpo_without_clipped_tokens,
        gmpo,
    ),
    Misreading(
        "gmpo_objective_is_smaller",
        "|J_GMPO| ≤ |J_GRPO|, so GMPO's objective varies less.",
        "AM–GM holds for each response. In a sum with signs, terms that cancel under "
        "one mean need not cancel under the other.",
        mean_of_objectives,
        mean_of_sizes,
    ),
]
