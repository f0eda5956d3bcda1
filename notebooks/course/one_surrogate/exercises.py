"""Exercises of chapter 11: PPO as a gate, seeds, who drops it, CISPO's objective."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from course.kit.exercise import Exercise
from refimpl.algorithms import Algorithm, Objective, from_gate


def ppo_gate(r: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    """0 where a token has moved on past its bound, 1 everywhere else."""
    rose = (advantages > 0) & (r > 1.2)
    fell = (advantages < 0) & (r < 0.8)
    return torch.where(rose | fell, 0.0, 1.0)


def seeds_needed(sd: float, effect: float) -> int:
    """(1.96 + 0.84) sd / √n ≤ effect, so n ≥ (2.8 sd / effect)²."""
    return math.ceil((2.8 * sd / effect) ** 2)


def who_drops(r: float, s: float, advantage: float) -> list[str]:
    """A hard clip drops a token that has moved on past the bound on *its* ratio."""
    bounds = {
        "ppo": (r, 0.8, 1.2),
        "dapo": (r, 0.8, 1.28),
        "gspo": (s, 1 - 3e-4, 1 + 4e-4),
        "gmpo": (r, math.exp(-0.4), math.exp(0.4)),
    }
    return [
        name
        for name, (x, low, high) in bounds.items()
        if (x > high if advantage > 0 else x < low)
    ]


def cispo_surrogate(r: torch.Tensor) -> torch.Tensor:
    """∫ min(1, 5/r) dr: r up to the cap, then 5 (1 + log(r/5)); f(1) = 1."""
    return torch.where(r < 5, r, 5 * (1 + (r / 5).log()))


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


def _with(other: str, names: list[str]) -> list[str]:
    """`names` and another one, in the order that the exercise asks for."""
    order = ("ppo", "dapo", "gspo", "cispo", "gmpo", "sapo")
    return [name for name in order if name in (*names, other)]


def broken(gate: Callable) -> Algorithm:
    """The run of exercise 11.7: neither gate nor ratio is held constant."""

    def objective(t):
        r = t.z.exp()
        return Objective(gate(r, t.advantages) * r * t.advantages * t.logp)

    return replace(from_gate(gate), objective=objective)


def _gate_by_min(r, advantages):
    """1 where the min takes the unclipped term."""
    return (r * advantages <= r.clamp(0.8, 1.2) * advantages).double()


def _seeds_one_by_one(sd, effect):
    n = 1
    while (1.96 + 0.84) * sd / math.sqrt(n) > effect:
        n += 1
    return n


def _drops_by_sign(r, s, advantage):
    """How far each ratio has moved in the direction of Â, on a log scale."""
    sign = 1 if advantage > 0 else -1
    rooms = {
        "ppo": (r, 1.2 if sign > 0 else 0.8),
        "dapo": (r, 1.28 if sign > 0 else 0.8),
        "gspo": (s, 1.0004 if sign > 0 else 0.9997),
        "gmpo": (r, math.exp(sign * 0.4)),
    }
    far = {k: sign * (math.log(x) - math.log(b)) for k, (x, b) in rooms.items()}
    return [k for k in rooms if far[k] > 0]


EXERCISES = (
    Exercise(
        "11.1",
        minutes=10,
        solution=ppo_gate,
        also=(_gate_by_min,),
        cases=((_R, _GOOD_BAD), (_R.flip(0), -_GOOD_BAD), (_R, 3 * _GOOD_BAD)),
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
                lambda r, a: r * ppo_gate(r, a)
            ),
            "Only the sign of Â matters. Its size does not move the bounds.": (
                lambda r, a: _where((r - 1) * a > 0.2)
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
        minutes=10,
        solution=seeds_needed,
        also=(_seeds_one_by_one,),
        cases=((0.1, 0.1), (0.13, 0.09), (0.02, 0.05), (0.3, 0.05)),
        mistakes={
            "That n finds the effect every other time: add 0.84 for the power.": (
                lambda sd, effect: math.ceil((1.96 * sd / effect) ** 2)
            ),
            "The differences are paired already; 2 sd² is for unpaired arms.": (
                lambda sd, effect: math.ceil(2 * (2.8 * sd / effect) ** 2)
            ),
            "The standard error falls with √n: square the quotient.": (
                lambda sd, effect: math.ceil(2.8 * sd / effect)
            ),
            "Round up: with fewer seeds the power is below 0.8.": (
                lambda sd, effect: math.floor((2.8 * sd / effect) ** 2)
            ),
            "Effect and standard deviation have changed places.": (
                lambda sd, effect: math.ceil((2.8 * effect / sd) ** 2)
            ),
        },
    ),
    Exercise(
        "11.3",
        minutes=15,
        solution=who_drops,
        also=(_drops_by_sign,),
        cases=(
            (1.3, 1.02, 1.0),
            (1.25, 0.99, 1.0),
            (0.7, 0.99, -1.0),
            (0.6, 1.01, -1.0),
            (1.6, 1.01, -1.0),
            (1.45, 1.01, 1.0),
            (1.6, 1.0001, 1.0),
            (6.0, 1.01, 1.0),
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
            "CISPO caps the coefficient; it drops no token.": (
                lambda r, s, a: _with("cispo", _who(r, s, a))
            ),
            "Beyond its cap CISPO keeps 5/r of a token's gradient, not nothing.": (
                lambda r, s, a: _with("cispo" if r > 5 else "", _who(r, s, a))
            ),
            "SAPO's gate is never 0.": (lambda r, s, a: _with("sapo", _who(r, s, a))),
        },
    ),
    Exercise(
        "11.4",
        minutes=15,
        solution=cispo_surrogate,
        also=(lambda r: r.clamp(max=5) + 5 * (r.clamp(min=5) / 5).log(),),
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
    Exercise(
        "11.5",
        minutes=5,
        solution=1.4,
        why="8 · 7 / 2 = 28 pairs, each of which misleads in 5 % of the studies.",
        mistakes={
            "That is one test. Eight arms make 8 · 7 / 2 pairs.": 0.05,
            "8 · 5 % counts the arms; it is the pairs that are tested.": 0.4,
            "8 · 7 counts each pair twice.": 2.8,
            "That is the number of pairs. How many of them mislead?": 28,
            "Nothing is there, and yet 5 % of the tests say otherwise.": 0,
        },
    ),
    Exercise(
        "11.6",
        minutes=5,
        solution=50,
        why="At the medium rate pairs show 0.1 from 47 warm starts on.",
        choices=(5, 10, 20, 50, 100),
        mistakes={
            "With 5 warm starts the medium rate shows effects of about 0.4.": 5,
            "With 10 warm starts the smallest effect is near 0.24.": 10,
            "With 20 warm starts the smallest effect is near 0.16.": 20,
            "That is what the unpaired row asks for. Here the two are compared in "
            "pairs.": 100,
        },
    ),
    Exercise(
        "11.7",
        minutes=15,
        solution=6,
        why="Gate and ratio are not detached: at r = 1 the slope is 1 + log π, and not "
        "1.",
        mistakes={
            "Line 1 is right: it only counts the rollouts.": 1,
            "Line 2 is right: the policy as it is now samples the rollout.": 2,
            "Line 4 is right: four mini-batches of one rollout, an update for each.": 4,
            "Line 3 is right: these are GRPO's advantages, group by group.": 3,
            "Line 5 is right: the log-probs of the policy as it is now, with their "
            "gradient. Where else does that gradient pass?": 5,
            "Line 7 is right: 1/(B|o|).": 7,
            "Line 8 is right: minus the weighed objective.": 8,
            "Line 9 is right: the usual step.": 9,
        },
    ),
)
