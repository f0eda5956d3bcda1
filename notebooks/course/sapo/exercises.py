"""Exercises of chapter 10: the objective, a gate to order, damped corrections."""

import math
from dataclasses import replace

import torch

from course.kit.exercise import Exercise
from refimpl.algorithms import ALGORITHMS, Objective, Tokens


def sapo_objective(
    ratios: torch.Tensor, advantage: float, tau_pos: float, tau_neg: float
) -> float:
    """(4/τ) σ(τ(r − 1)) Â, averaged over the response."""
    tau = tau_pos if advantage > 0 else tau_neg
    return (4 / tau * torch.sigmoid(tau * (ratios - 1)) * advantage).mean().item()


def tau_for(width: float, left: float) -> float:
    """sech²(τ·width/2) = left at τ = 2 arcosh(1/√left) / width."""
    return 2 * math.acosh(1 / math.sqrt(left)) / width


def damped_corrections(ratios: list[float], advantages: list[float]) -> int:
    """Tokens that moved against their advantage: PPO lets them back in full."""
    pairs = zip(ratios, advantages)
    return sum((a > 0 and r < 1) or (a < 0 and r > 1) for r, a in pairs)


_R = torch.tensor([1.5, 0.7, 1.0])
_CASES = ((_R, 1.0, 2.0, 4.0), (_R, -0.5, 2.0, 4.0), (_R, 2.0, 1.0, 1.05))


def _gate(ratios, tau):
    return 4 / tau * torch.sigmoid(tau * (ratios - 1))


def _tau(advantage, pos, neg):
    return pos if advantage > 0 else neg


def _with(f):
    """10.1 with another f(r, τ)."""
    return lambda r, a, pos, neg: (f(r, _tau(a, pos, neg)) * a).mean().item()


def _by_tanh(ratios, advantage, pos, neg):
    """σ(x) = (1 + tanh(x/2)) / 2, token by token."""
    tau = _tau(advantage, pos, neg)
    each = [2 / tau * (1 + math.tanh(tau * (r - 1) / 2)) for r in ratios.tolist()]
    return advantage * sum(each) / len(each)


def _by_sigmoid(width, left):
    """4p(1 − p) = left is a quadratic equation, and x = log(p / (1 − p))."""
    p = (1 + math.sqrt(1 - left)) / 2
    return math.log(p / (1 - p)) / width


def _without_exp(t: Tokens) -> Objective:
    """SAPO's objective at τ = 8.8 with log r where r belongs."""
    return Objective(4 / 8.8 * torch.sigmoid(8.8 * (t.z - 1)) * t.advantages)


BROKEN = replace(ALGORITHMS["sapo"], objective=_without_exp)
"""The run of exercise 10.6, for `train`."""

_MOVED = [1.3, 0.7, 1.3, 0.7, 1.0, 1.05]
_PAID = [1.0, 1.0, -1.0, -1.0, 1.0, -1.0]

EXERCISES = (
    Exercise(
        "10.1",
        minutes=10,
        solution=sapo_objective,
        also=(_by_tanh,),
        cases=_CASES,
        mistakes={
            "r is counted twice: it is inside f, not a factor as well.": _with(
                lambda r, tau: _gate(r, tau) * r
            ),
            "The factor 4/τ is missing: with it the gate at r = 1 is 1.": _with(
                lambda r, tau: torch.sigmoid(tau * (r - 1))
            ),
            "τ_pos belongs to Â > 0, τ_neg to the others.": (
                lambda r, a, pos, neg: sapo_objective(r, a, neg, pos)
            ),
            "The gate is centred at r = 1: σ(τ(r − 1)).": _with(
                lambda r, tau: 4 / tau * torch.sigmoid(tau * r)
            ),
            "That has the gate f'(r), which is in the gradient. You need f itself.": (
                _with(lambda r, tau: 1 / torch.cosh(tau * (r - 1) / 2) ** 2)
            ),
            "That is the sum; SAPO averages over the response.": (
                lambda r, *given: len(r) * sapo_objective(r, *given)
            ),
            "One ratio for the response is GSPO's; here every token has its own.": (
                _with(lambda r, tau: _gate(r.log().mean().exp(), tau))
            ),
        },
    ),
    Exercise(
        "10.2",
        minutes=10,
        solution=tau_for,
        also=(_by_sigmoid,),
        cases=((0.2, 0.5), (0.2, 0.1), (1.763, 0.5), (0.5, 0.9)),
        mistakes={
            "That keeps one half whatever `left` is; it enters under the arcosh.": (
                lambda width, left: 2 * math.acosh(math.sqrt(2)) / width
            ),
            "You left out the ½ inside: the gate is sech²(τ(r−1)/2).": (
                lambda width, left: math.acosh(1 / math.sqrt(left)) / width
            ),
            "That is where sech is `left`; the gate is its square.": (
                lambda width, left: 2 * math.acosh(1 / left) / width
            ),
            "`left` is what the gate keeps; you solved for what it takes.": (
                lambda width, left: 2 * math.acosh(1 / math.sqrt(1 - left)) / width
            ),
            "Divide by the width: a narrower gate has a larger τ.": (
                lambda width, left: 2 * math.acosh(1 / math.sqrt(left)) * width
            ),
        },
    ),
    Exercise(
        "10.3",
        minutes=5,
        solution=damped_corrections,
        also=(
            lambda ratios, advantages: sum(
                (r - 1) * a < 0 for r, a in zip(ratios, advantages)
            ),
        ),
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
            "Those within 0.2 of 1 count too: SAPO damps every correction.": (
                lambda r, a: sum(
                    (y > 0 and x < 0.8) or (y < 0 and x > 1.2) for x, y in zip(r, a)
                )
            ),
            "Bad tokens that rose are corrections too.": (
                lambda r, a: sum(y > 0 and x < 1 for x, y in zip(r, a))
            ),
        },
    ),
    Exercise(
        "10.4",
        minutes=5,
        solution="equal",
        why="Before the first update every ratio is 1, where the gate is 1 for every "
        "τ.",
        choices=("none", "smaller", "equal"),
        mistakes={
            "Narrow, but not closed: at r = 1 the gate is 1 for every τ.": "none",
            "It becomes smaller with the first update. Before it, every r is 1.": (
                "smaller"
            ),
            "No gate of this chapter is above 1.": "larger",
        },
    ),
    Exercise(
        "10.5",
        minutes=5,
        solution=2,
        why="The lower right panel: c = g r has its top near r = 2.",
        choices=(1, 1.5, 2, 3),
        mistakes={
            "There the gate is widest open. The push goes with c = g r.": 1,
            "Its coefficient is still rising there.": 1.5,
            "That is where GRPO's unclipped line ends highest; SAPO's has fallen.": 3,
        },
    ),
    Exercise(
        "10.6",
        minutes=15,
        solution=7,
        why="The gate is centred at r = 1, and z − 1 is not r − 1: exp is missing.",
        mistakes={
            "Line 1 is right: it only counts the rollouts.": 1,
            "Line 2 is right: the policy as it is now samples the rollout.": 2,
            "Line 4 is right: four mini-batches of one rollout, an update for each.": 4,
            "Line 3 is right: these are GRPO's advantages, group by group.": 3,
            "Line 5 is right: the log-probs of the policy as it is now.": 5,
            "Line 6 is right: z is the log-ratio. Where does its ratio come in?": 6,
            "Line 8 is right: 1/(G|o|), SAPO's normaliser.": 8,
            "Line 9 is right: minus the weighed objective.": 9,
            "Line 10 is right: a norm below 1 is not clipped.": 10,
        },
    ),
)
