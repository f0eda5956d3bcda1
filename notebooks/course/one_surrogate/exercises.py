"""Chapter 11: the product is typed; CISPO's objective, seeds, and runs that fail."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from course.kit.exercise import Exercise
from course.kit.usual import batch, usual
from refimpl.algorithms import Algorithm, Objective
from refimpl.gate import from_gate


def product_loss(logp, old_logp, advantages, mask, row):
    """−Σ weight · gate · ratio · Â · log π, in which only log π has a gradient."""
    A = advantages[:, None]
    z = ((logp - old_logp) * mask).detach()
    ratio, gate = row(z, A, mask)
    weight = mask / (len(mask) * mask.sum(1, keepdim=True))
    return -(weight * gate * ratio * A * logp).sum()


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


_RATIOS = torch.tensor([0.5, 1.0, 3.0, 6.0, 12.0])


def _with(other: str, names: list[str]) -> list[str]:
    """`names` and another one, in the order that the exercise asks for."""
    order = ("ppo", "dapo", "gspo", "cispo", "gmpo", "sapo")
    return [name for name in order if name in (*names, other)]


def broken(gate: Callable) -> Algorithm:
    """The run that fails: neither gate nor ratio is held constant."""

    def objective(t):
        r = t.z.exp()
        return Objective(gate(r, t.advantages) * r * t.advantages * t.logp)

    return replace(from_gate(gate), objective=objective)


@dataclass(frozen=True)
class _Row:
    """A row of the table, with a name that a message can show."""

    name: str
    function: Callable

    def __call__(self, z, A, mask):
        return self.function(z, A, mask)

    def __repr__(self):
        return f"the row of {self.name}"


def _sapo(z, A, mask):
    r = z.exp()
    return r, 1 / torch.cosh(4.4 * (r - 1)) ** 2


def _gspo(z, A, mask):
    s = ((z * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)).exp()
    closed = ((A > 0) & (s > 1.0004)) | ((A < 0) & (s < 0.9997))
    return s.expand_as(z), torch.where(closed, 0.0, 1.0).expand_as(z)


TYPED = (
    Exercise(
        "11.product_loss",
        solution=product_loss,
        cases=tuple(
            (*batch(), _Row(name, function))
            for name, function in (("SAPO, τ = 8.8", _sapo), ("GSPO", _gspo))
        ),
        mistakes={
            **usual(product_loss),
            "The value is right, but a gradient passes through ratio and gate as "
            "well. Detach z before the row sees it.": {".detach()": ""},
            "Without log π nothing has a gradient: the other factors are constants.": {
                "A * logp": "A"
            },
            "The weight is missing: divide by B and by each response's length.": {
                " / (len(mask) * mask.sum(1, keepdim=True))": ""
            },
            "The ratio is counted twice: the row returns it already.": {
                "ratio * A": "ratio**2 * A"
            },
            "The gate is missing.": {"gate * ": ""},
        },
        gradient=True,
    ),
)

SICK = ("rate", "hack", "limit", "dead")
"""Causes to choose from in 11.4."""


def _by_size(r, s, a):
    """A bound that moves with the size of Â."""
    sides = {"ppo": (r, 0.2, 0.2), "dapo": (r, 0.2, 0.28), "gspo": (s, 3e-4, 4e-4)}
    sides["gmpo"] = (r, 1 - math.exp(-0.4), math.exp(0.4) - 1)
    return [k for k, (x, d, u) in sides.items() if (x - 1) * a > (u if a > 0 else d)]


EXERCISES = (
    Exercise(
        "11.1",
        solution=cispo_surrogate,
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
            "Its slope is right, but f(1) should be 1.": (
                lambda r: cispo_surrogate(r) - 1
            ),
        },
    ),
    Exercise(
        "11.2",
        solution="gspo",
        why="GSPO decides for the whole response. Its mean ratio is mostly past the "
        "bound in the direction of Â, and then tokens that come back are dropped "
        "along with the others.",
        choices=("grpo", "gspo", "cispo", "gmpo", "sapo"),
        mistakes={
            "The min keeps the whole gradient of a token on its way back, however far "
            "away it is.": "grpo",
            "CISPO drops nothing. It caps a ratio above 5, and few tokens get there.": (
                "cispo"
            ),
            "GMPO removes some of it, because its single ratio is smaller than that "
            "of a token that rose. Another method drops such tokens outright.": "gmpo",
            "SAPO's gate closes on both sides, but at the paper's τ it is so wide "
            "that it removes only a little.": "sapo",
        },
    ),
    Exercise(
        "11.3",
        solution=seeds_needed,
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
        "11.4",
        solution=("hack", "limit", "rate"),
        parts=("A", "B", "C"),
        choices=(SICK, SICK, SICK),
        why="A is rewarded for something other than right answers, B's answers are "
        "cut off, and C's ratios explode.",
        mistakes={
            "In C the groups are live at the first rollout, when its ratios are "
            "already wild. The earlier symptom is nearer to the cause.": (
                "hack",
                "limit",
                "dead",
            ),
            "B's answers are cut off at the first rollout already, before any rate "
            "could do harm.": ("hack", "rate", "limit"),
            "In A hardly an answer is cut off, and the reward rises. Compare it with "
            "the accuracy.": ("limit", "hack", "rate"),
            "You have exchanged A and C. Which of the two rewards rises?": (
                "rate",
                "limit",
                "hack",
            ),
        },
    ),
    Exercise(
        "11.5",
        solution=who_drops,
        cases=(
            (1.3, 1.02, 1.0),
            (1.25, 0.99, 1.0),
            (0.7, 0.99, -1.0),
            (0.6, 1.01, -1.0),
            (1.6, 1.01, -1.0),
            (1.45, 1.01, 1.0),
            (1.6, 1.0001, 1.0),
            (6.0, 1.01, 1.0),
            (1.22, 1.0003, 0.3),
            (0.78, 0.9999, -0.3),
        ),
        mistakes={
            "Only a token that moves on is dropped: look at the sign of Â.": {
                "(x > high if advantage > 0 else x < low)": "x > high or x < low"
            },
            "GSPO looks at the response's ratio s, not at the token's.": {
                '"gspo": (s': '"gspo": (r'
            },
            "GMPO's bounds are on log r: e^±0.4, not 1 ± 0.4.": {
                "math.exp(-0.4), math.exp(0.4)": "0.6, 1.4"
            },
            "CISPO caps the coefficient; it drops no token.": (
                lambda r, s, a: _with("cispo", who_drops(r, s, a))
            ),
            "Beyond its cap CISPO keeps 5/r of a token's gradient, not nothing.": (
                lambda r, s, a: _with("cispo" if r > 5 else "", who_drops(r, s, a))
            ),
            "SAPO's gate is never 0.": (
                lambda r, s, a: _with("sapo", who_drops(r, s, a))
            ),
            "Only the sign of Â matters. Its size does not move the bounds.": _by_size,
        },
    ),
    Exercise(
        "11.6",
        solution="6b",
        lines=9,
        why="Gate and ratio are not detached: at r = 1 the coefficient is 1 + log π, "
        "and not 1.",
        mistakes={
            "That is the line. But its ratio divides by the stored old log-probs, as "
            "it should. What else in the line depends on `logp`?": "6c",
            "That is the line, and every factor in it belongs there. Which of them may "
            "have a gradient?": "6d",
            "Line 5 is right: log-probs of the policy as it is now, with their "
            "gradient. Where else does that gradient pass?": "5b",
            "The old log-probs were stored when the rollout was sampled; line 5 reads "
            "the new ones.": "5c",
            "Line 7 is right: a mini-batch's loss is a mean over its own "
            "responses.": "7a",
            "Line 8 is right: it is minus the weighted objective, and the sign is "
            "correct.": "8d",
        },
    ),
    Exercise(
        "11.8",
        solution="halves",
        why="The gate is half closed at 1.763/τ.",
        choices=("doubles", "halves", "stays"),
        mistakes={
            "In a softmax a high temperature flattens. Here τ multiplies r − 1, "
            "so a high one makes the gate narrow.": "doubles",
            "The gate at r = 1 stays, at 1. Its width does not: "
            "τ multiplies r − 1.": "stays",
        },
    ),
    Exercise(
        "11.9",
        solution="long ones",
        why="Each token has the same weight, so a response has as "
        "much as it has tokens.",
        choices=("long ones", "short ones", "none"),
        mistakes={
            "In GRPO's mean a token of a short response has more weight. In a "
            "token mean all tokens have the same.": "short ones",
            "That is GRPO's mean, in which each response has the "
            "same weight. Here each token has.": "none",
        },
    ),
    Exercise(
        "11.10",
        solution="nothing",
        why="The advantages of a group add up to 0, and at r = 1 the loss is minus "
        "their mean. Its gradient is not 0.",
        choices=("nothing", "that it has converged", "that its groups are dead"),
        mistakes={
            "It is 0 from the first rollout on, because centred advantages add up "
            "to 0. Watch the reward.": "that it has converged",
            "In a dead group every single advantage is 0. Here only their sum is, "
            "and the gradient is not.": "that its groups are dead",
        },
    ),
)
