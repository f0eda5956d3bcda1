"""Exercises of chapter 10: the objective, τ from a width, damped corrections."""

import math

import torch

from course.exercises import Exercise
from course.exercises.solutions import chapter10 as solutions

_R = torch.tensor([1.5, 0.7, 1.0])
_CASES = ((_R, 1.0, 2.0, 4.0), (_R, -0.5, 2.0, 4.0), (_R, 2.0, 1.0, 1.05))


def _gate(ratios, tau):
    return 4 / tau * torch.sigmoid(tau * (ratios - 1))


def _tau(advantage, pos, neg):
    return pos if advantage > 0 else neg


_MOVED = [1.3, 0.7, 1.3, 0.7, 1.0]
_PAID = [1.0, 1.0, -1.0, -1.0, 1.0]

EXERCISES = (
    Exercise(
        "10.1",
        "SAPO's objective",
        difficulty=2,
        minutes=10,
        solution=solutions.sapo_objective,
        cases=_CASES,
        mistakes={
            "r is counted twice: it is inside the gate, not a factor as well.": (
                lambda r, a, p, n: (_gate(r, _tau(a, p, n)) * r * a).mean().item()
            ),
            "The factor 4/τ is missing: with it the weight at r = 1 is 1.": (
                lambda r, a, p, n: (
                    (torch.sigmoid(_tau(a, p, n) * (r - 1)) * a).mean().item()
                )
            ),
            "τ_pos belongs to Â > 0, τ_neg to the others.": (
                lambda r, a, p, n: (_gate(r, _tau(-a, p, n)) * a).mean().item()
            ),
            "The gate is centred at r = 1: σ(τ(r − 1)).": (
                lambda r, a, p, n: (
                    (4 / _tau(a, p, n) * torch.sigmoid(_tau(a, p, n) * r) * a)
                    .mean()
                    .item()
                )
            ),
            "That is the sum; SAPO averages over the response.": (
                lambda r, a, p, n: (_gate(r, _tau(a, p, n)) * a).sum().item()
            ),
            "One ratio for the response is GSPO's; here every token has its own.": (
                lambda r, a, p, n: (
                    _gate(r.log().mean().exp(), _tau(a, p, n)) * a
                ).item()
            ),
        },
    ),
    Exercise(
        "10.2",
        "τ as a width",
        difficulty=2,
        minutes=10,
        solution=solutions.tau_for,
        cases=((0.2,), (0.4,), (1.763,)),
        mistakes={
            "1/width is only the scale; the weight is sech² = ½ at τ·width = 1.763.": (
                lambda w: 1 / w
            ),
            "You left out the ½ inside: the weight is sech²(τ(r−1)/2).": (
                lambda w: math.acosh(math.sqrt(2)) / w
            ),
            "That is where sech is ½; the weight is its square.": (
                lambda w: 2 * math.acosh(2) / w
            ),
            "1.763 is rounded: use 2·acosh(√2).": lambda w: 1.763 / w,
            "That halves the objective's σ, not its slope.": lambda w: math.log(3) / w,
        },
    ),
    Exercise(
        "10.3",
        "Damped corrections",
        difficulty=2,
        minutes=5,
        solution=solutions.damped_corrections,
        cases=((_MOVED, _PAID), (_MOVED[:2], _PAID[:2]), (_MOVED[3:], _PAID[3:])),
        mistakes={
            "Those moved on, as their advantage asks. Count those that came back.": (
                lambda r, a: sum(
                    (y > 0 and x > 1) or (y < 0 and x < 1) for x, y in zip(r, a)
                )
            ),
            "All tokens off 1 are damped; the question is which PPO lets through.": (
                lambda r, a: sum(x != 1 for x in r)
            ),
            "Bad tokens that rose are corrections too.": (
                lambda r, a: sum(y > 0 and x < 1 for x, y in zip(r, a))
            ),
        },
    ),
)
