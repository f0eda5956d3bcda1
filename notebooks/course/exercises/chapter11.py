"""Exercises of chapter 11: PPO as a gate, a half-width, who drops it, CISPO's f."""

import math

import torch

from course.exercises import Exercise
from course.exercises.solutions import chapter11 as solutions

_R = torch.tensor([[0.5, 0.9, 1.1, 1.5], [0.5, 0.9, 1.1, 1.5]])
_GOOD_BAD = torch.tensor([[1.0], [-0.5]]).expand(2, 4)
_RATIOS = torch.tensor([0.5, 1.0, 3.0, 6.0, 12.0])


def _where(drop: torch.Tensor) -> torch.Tensor:
    return torch.where(drop, 0.0, 1.0)


_GMPO = (math.exp(-0.4), math.exp(0.4))


def _who(r, s, a, two_sided=False, gspo=True, gmpo=_GMPO):
    bounds = {
        "ppo": (r, 0.8, 1.2),
        "dapo": (r, 0.8, 1.28),
        "gspo": (s if gspo else r, 1 - 3e-4, 1 + 4e-4),
        "gmpo": (r, *gmpo),
    }
    return [
        name
        for name, (x, low, high) in bounds.items()
        if ((x > high or x < low) if two_sided else (x > high if a > 0 else x < low))
    ]


EXERCISES = (
    Exercise(
        "11.1",
        "PPO's clip as a gate",
        difficulty=2,
        minutes=10,
        solution=solutions.ppo_gate,
        cases=((_R, _GOOD_BAD), (_R.flip(0), -_GOOD_BAD)),
        mistakes={
            "You close both sides: a token on its way back keeps its gradient.": (
                lambda r, a: _where((r > 1.2) | (r < 0.8))
            ),
            "You close the wrong sides: a bad token's bound is the lower one.": (
                lambda r, a: _where(((a > 0) & (r < 0.8)) | ((a < 0) & (r > 1.2)))
            ),
            "The gate is what multiplies r Â; leave r and Â out of it.": (
                lambda r, a: torch.minimum(r * a, r.clamp(0.8, 1.2) * a)
            ),
            "The gate is what multiplies r Â; r is counted twice.": (
                lambda r, a: r * solutions.ppo_gate(r, a)
            ),
            "You close only the upper side: bad tokens are clipped below.": (
                lambda r, a: _where((a > 0) & (r > 1.2))
            ),
            "That is clip(r)/r: it weakens tokens. PPO's gate is 1 or 0.": (
                lambda r, a: r.clamp(0.8, 1.2) / r
            ),
        },
    ),
    Exercise(
        "11.2",
        "The half-width of SAPO's gate",
        difficulty=2,
        minutes=10,
        solution=solutions.half_width,
        cases=((1.0,), (8.8,), (0.5,)),
        mistakes={
            "That is the full width; the distance from 1 is half of it.": (
                lambda tau: 4 * math.acosh(math.sqrt(2)) / tau
            ),
            "1.763 is rounded: use 2·acosh(√2).": lambda tau: 1.763 / tau,
            "You forgot the 2 in τ(r − 1)/2.": (
                lambda tau: math.acosh(math.sqrt(2)) / tau
            ),
            "That is where sech is ½; the gate is its square.": (
                lambda tau: 2 * math.acosh(2) / tau
            ),
            "That is the ratio; its distance from 1 was asked for.": (
                lambda tau: 1 + 2 * math.acosh(math.sqrt(2)) / tau
            ),
        },
    ),
    Exercise(
        "11.3",
        "Which methods drop this token?",
        difficulty=3,
        minutes=15,
        solution=solutions.who_drops,
        cases=(
            (1.3, 1.02, 1.0),
            (1.25, 0.99, 1.0),
            (0.7, 0.99, -1.0),
            (0.6, 1.01, -1.0),
            (1.6, 1.01, -1.0),
            (1.45, 1.01, 1.0),
            (1.6, 1.0001, 1.0),
        ),
        mistakes={
            "Only a token that moves on is dropped: look at the sign of Â.": (
                lambda r, s, a: _who(r, s, a, two_sided=True)
            ),
            "GSPO looks at the response's ratio s, not at the token's.": (
                lambda r, s, a: _who(r, s, a, gspo=False)
            ),
            "GMPO's bounds are on log r: e^±0.4, not 1 ± 0.4.": (
                lambda r, s, a: _who(r, s, a, gmpo=(0.6, 1.4))
            ),
            "CISPO caps a weight; it drops no token.": (
                lambda r, s, a: [*_who(r, s, a), "cispo"]
            ),
            "SAPO's gate is never 0.": (lambda r, s, a: [*_who(r, s, a), "sapo"]),
        },
    ),
    Exercise(
        "11.4",
        "The objective that CISPO climbs",
        difficulty=4,
        minutes=15,
        solution=solutions.cispo_surrogate,
        cases=((_RATIOS,),),
        mistakes={
            "min(r, 5) has no gradient above 5: that is a clip, and drops the token.": (
                lambda r: r.clamp(max=5)
            ),
            "That is the gate itself; f is its integral.": (
                lambda r: (5 / r).clamp(max=1)
            ),
            "∫ 5/r dr = 5 log r; now make the two pieces meet at r = 5.": (
                lambda r: torch.where(r < 5, r, 5 * r.log())
            ),
            "You integrated over log r: d log r = dr/r, so a factor r is missing.": (
                lambda r: torch.where(r < 5, 1 + r.log(), 1 + math.log(5) + 1 - 5 / r)
            ),
        },
    ),
)
