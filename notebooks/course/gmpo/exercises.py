"""Exercises of chapter 08: the objective, a token's push, one wild token."""

import math
from dataclasses import replace

import torch

from course.kit.exercise import Exercise
from refimpl.algorithms import ALGORITHMS, Objective, Tokens


def gmpo_objective(ratios: torch.Tensor, advantage: float) -> float:
    """8.2: clip log r on the side the advantage moves it to; mean; exp; times Â."""
    z = ratios.log()
    z = z.clamp(max=0.4) if advantage > 0 else z.clamp(min=-0.4)
    return advantage * z.mean().exp().item()


def token_coefficients(ratios: torch.Tensor, advantage: float) -> list[float]:
    """8.3: s / |o| for a free token, 0 for a clipped one; s holds the clipped ones too.

    Clipped is what lies *beyond* its bound.
    """
    z = ratios.log()
    clipped = z.clamp(max=0.4) if advantage > 0 else z.clamp(min=-0.4)
    push = clipped.mean().exp() / len(z)
    return [push.item() if a == b else 0.0 for a, b in zip(z, clipped)]


_UP = torch.tensor([2.0, 0.5, 1.1])
_DOWN = torch.tensor([0.4, 1.8, 0.9])
_CASES = ((_UP, 1.0), (_DOWN, -0.5), (_UP, -2.0), (_DOWN, 1.5))


def _bounds_of_ratios(t: Tokens) -> Objective:
    """GMPO with e^-0.4 and e^0.4, the bounds of r, as bounds of the log-ratio."""
    low, high = math.exp(-0.4), math.exp(0.4)
    gmpo = ALGORITHMS["gmpo"]
    return gmpo.objective(t, epsilon_low=-low, epsilon_high=high)


BROKEN = replace(ALGORITHMS["gmpo"], objective=_bounds_of_ratios)
"""The run of exercise 8.5, for `train`."""


def _mean_of(z: torch.Tensor, advantage: float) -> float:
    return advantage * z.mean().exp().item()


def _one_sided(z: torch.Tensor, advantage: float) -> torch.Tensor:
    return z.clamp(max=0.4) if advantage > 0 else z.clamp(min=-0.4)


def _as_printed(ratios, advantage):
    """The paper's product of absolute values, its root, and the sign."""
    a = torch.tensor(advantage)
    inside = ratios.clamp(math.exp(-0.4), math.exp(0.4))
    product = torch.minimum(ratios * a, inside * a).abs().prod()
    return (a.sign() * product ** (1 / len(ratios))).item()


def _by_autograd(ratios, advantage):
    z = ratios.log().requires_grad_()
    _one_sided(z, advantage).mean().exp().backward()
    return z.grad


def _of_free_tokens(ratios, advantage):
    """What 8.3 asks for, with the clipped tokens neither in the mean nor in |o|."""
    z = ratios.log()
    free = _one_sided(z, advantage) == z
    push = z[free].mean().exp() / free.sum()
    return [push.item() if one else 0.0 for one in free]


EXERCISES = (
    Exercise(
        "8.1",
        minutes=5,
        solution=1.1,
        why="The wild token counts as e^0.4, so s = e^(0.4/4) = 1.105.",
        mistakes={
            "In GRPO, yes: there a neighbour's ratio does not matter. Here the wild "
            "token lifts the mean.": 1.0,
            "The wild token is clipped: it counts as e^0.4 and not as 20.": 2.1,
            "That is the wild token's bound, e^0.4; it is one of four in the mean.": (
                1.5
            ),
            "That is the arithmetic mean of the ratios.": 5.8,
            "That is it, with two decimals; asked is one.": 1.11,
            "That is it, with three decimals; asked is one.": 1.105,
            "That is the coefficient of the clipped token. Asked is its neighbours'.": (
                0.0
            ),
        },
    ),
    Exercise(
        "8.2",
        minutes=10,
        solution=gmpo_objective,
        also=(_as_printed,),
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
            "You bound bad responses from above too; they move down.": (
                lambda r, a: _mean_of(r.log().clamp(max=0.4), a)
            ),
            "The clip looks at the sign of Â: max for Â > 0, min for Â < 0.": (
                lambda r, a: _mean_of(_one_sided(r.log(), -a), a)
            ),
        },
    ),
    Exercise(
        "8.3",
        minutes=15,
        solution=token_coefficients,
        also=(_by_autograd,),
        cases=_CASES,
        mistakes={
            "You take each token's own ratio, as GRPO does; here they share one s.": (
                lambda r, a: [
                    (x / len(r)).item() if w else 0.0
                    for x, w in zip(r, token_coefficients(r, a))
                ]
            ),
            "Clipped tokens have no gradient: theirs is 0.": (
                lambda r, a: [
                    (_one_sided(r.log(), a).mean().exp() / len(r)).item() for _ in r
                ]
            ),
            "Clipped tokens stay in the mean, and in the count |o|.": _of_free_tokens,
            "Leave Â out: in the formula it stands beside x.": (
                lambda r, a: [a * w for w in token_coefficients(r, a)]
            ),
            "That is the gate, s / r: x is what stands before Â, gate times ratio.": (
                lambda r, a: [
                    (w / x).item() for w, x in zip(token_coefficients(r, a), r)
                ]
            ),
            "Divide by |o|: the exponent 1/|o| comes down in front.": (
                lambda r, a: [w * len(r) for w in token_coefficients(r, a)]
            ),
        },
    ),
    Exercise(
        "8.4",
        minutes=5,
        solution=4,
        why="0.2^(1/8) = 0.82 in GMPO, 0.2 in GRPO.",
        choices=(1, 2, 4, 8),
        mistakes={
            "They are equal at r = 1 only; at 0.2 the lines are far apart.": 1,
            "That is |o| = 2, the other line of GMPO.": 2,
            "Close: GRPO's line is at 0.2 there, GMPO's at 0.8 and not at 1.6.": 8,
            "You divided the other way round.": 0.25,
        },
    ),
    Exercise(
        "8.5",
        minutes=15,
        solution=6,
        why="z is a log-ratio, and its bounds are ∓0.4. With e^∓0.4 every z of a bad "
        "response is below the lower bound, 0.67, already on policy: bad responses "
        "have no gradient.",
        mistakes={
            "Line 1 is right: it only counts the rollouts.": 1,
            "Line 2 is right: the policy as it is now samples the rollout.": 2,
            "Line 3 is right: GRPO's advantages, one per response.": 3,
            "Line 4 is right: four mini-batches, four passes, K = 16.": 4,
            "Line 5 is right: z is the log-ratio, log π_θ − log π_old.": 5,
            "Line 7 is right: min for good responses, max for bad ones. What are its "
            "bounds?": 7,
            "Line 8 is right: the mean of z over the real tokens, then exp.": 8,
            "Line 9 is right: J is Â times s.": 9,
            "Line 10 is right: the mean over responses, descended with a minus.": 10,
        },
    ),
)
