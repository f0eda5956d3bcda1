"""Exercises of chapter 08: the objective, a token's weight, one wild token."""

import math

import torch

from course.exercises import Exercise
from course.exercises.solutions import chapter08 as solutions

_UP = torch.tensor([2.0, 0.5, 1.1])
_DOWN = torch.tensor([0.4, 1.8, 0.9])
_CASES = ((_UP, 1.0), (_DOWN, -0.5), (_UP, -2.0), (_DOWN, 1.5))


def _mean_of(z: torch.Tensor, advantage: float) -> float:
    return advantage * z.mean().exp().item()


def _one_sided(z: torch.Tensor, advantage: float) -> torch.Tensor:
    return z.clamp(max=0.4) if advantage > 0 else z.clamp(min=-0.4)


def _weights(ratios, advantage, kept=None):
    z = ratios.log()
    held = _one_sided(z, advantage)
    free = held == z
    mean = (z[free] if kept == "free" else held).mean().exp()
    count = free.sum() if kept == "free" else len(z)
    return [(mean / count).item() if f else 0.0 for f in free]


EXERCISES = (
    Exercise(
        "8.1",
        "The objective of one response",
        difficulty=2,
        minutes=10,
        solution=solutions.gmpo_objective,
        cases=_CASES,
        mistakes={
            "You clip on both sides: the side where a token comes back stays free.": (
                lambda r, a: _mean_of(r.log().clamp(-0.4, 0.4), a)
            ),
            "That is the arithmetic mean: average log-ratios, then exp.": (
                lambda r, a: a * _one_sided(r.log(), a).exp().mean().item()
            ),
            "Your bounds are 1 ± 0.4; GMPO's are on the log-ratio, e^±0.4.": (
                lambda r, a: _mean_of(
                    (r.clamp(max=1.4) if a > 0 else r.clamp(min=0.6)).log(), a
                )
            ),
            "You forgot the clip: that is GSPO without its own.": (
                lambda r, a: _mean_of(r.log(), a)
            ),
            "You take the product, not its |o|-th root: divide the sum by |o|.": (
                lambda r, a: a * _one_sided(r.log(), a).sum().exp().item()
            ),
            "The clip looks at the sign of Â: max for Â > 0, min for Â < 0.": (
                lambda r, a: _mean_of(_one_sided(r.log(), -a), a)
            ),
        },
    ),
    Exercise(
        "8.2",
        "What each token weighs",
        difficulty=3,
        minutes=15,
        solution=solutions.token_weights,
        cases=_CASES,
        mistakes={
            "You weigh a token by its own ratio, as GRPO does. Here all share one.": (
                lambda r, a: [
                    (x / len(r)).item() if w else 0.0 for x, w in zip(r, _weights(r, a))
                ]
            ),
            "Clipped tokens have no gradient: their weight is 0.": (
                lambda r, a: [
                    (_one_sided(r.log(), a).mean().exp() / len(r)).item() for _ in r
                ]
            ),
            "Clipped tokens stay in the mean, and in the count |o|.": (
                lambda r, a: _weights(r, a, "free")
            ),
            "Divide by |o|: the exponent 1/|o| comes down in front.": (
                lambda r, a: [w * len(r) for w in _weights(r, a)]
            ),
        },
    ),
    Exercise(
        "8.3",
        "One wild token among four",
        difficulty=2,
        minutes=5,
        solution=solutions.ALONE,
        mistakes={
            "e^0.4 is the bound on a token; here the whole mean is to reach it.": (
                math.exp(0.4)
            ),
            "That is where the arithmetic mean reaches e^0.4.": 4 * math.exp(0.4) - 3,
            "That is its log; the ratio was asked for.": 1.6,
            "e^0.1: you took the root where you need the power.": math.exp(0.1),
        },
    ),
)
