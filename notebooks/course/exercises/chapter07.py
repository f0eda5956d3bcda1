"""Exercises of chapter 07: weights, the mask, the stop-gradient, the two bounds."""

import math

import torch

from course.exercises import Exercise
from course.exercises.solutions import chapter07 as solutions

_RATIOS = torch.tensor([0.3, 0.9, 1.0, 1.25, 2.0, 7.0])
_SIGNS = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, 1.0])
_MASK_CASES = (
    (torch.tensor([0.5, 0.5, 1.5, 1.5]), torch.tensor([1.0, -1, 1, -1]), 0.2, 0.28),
    (torch.tensor([0.85, 1.25, 1.25, 0.6]), torch.tensor([-1.0, 1, -1, -2]), 0.2, 0.2),
    (torch.tensor([0.75, 1.29, 1.0]), torch.tensor([-0.5, 0.5, 0.0]), 0.3, 0.28),
)
_OLD = torch.tensor([-3.0, -1.0, -2.5, -0.2])
_LOGP = torch.tensor([-1.0, -1.2, -2.5, -0.9])
_VALUES = torch.tensor([1.0, -0.5, 2.0, -1.0])


def _kept(inside):
    return lambda r, a, low, high: inside(r, a, low, high).float()


def _weighed(weight):
    """Â times `weight(r, log π)` over T, the gradient written out."""

    def gradient(logp, old_logp, advantages, cap):
        r = (logp - old_logp).exp()
        return weight(r, logp, cap) * advantages / len(logp)

    return gradient


EXERCISES = (
    Exercise(
        "7.1",
        "What each token weighs",
        difficulty=1,
        minutes=5,
        solution=solutions.token_weights,
        cases=((_RATIOS, 5.0), (_RATIOS, 1.28)),
        mistakes={
            "There is no lower bound: a token below 1 keeps its own ratio.": (
                lambda r, cap: r.clamp(0.8, cap)
            ),
            "The cap is the ratio itself here, not 1 + cap.": (
                lambda r, cap: r.clamp(max=1 + cap)
            ),
            "A capped token is not dropped: it weighs the cap.": (
                lambda r, cap: r.masked_fill(r > cap, 0)
            ),
            "You left out the importance ratio: only the part above the cap goes.": (
                lambda r, cap: torch.ones_like(r)
            ),
            "You did not cap: 7 is above 5.": lambda r, cap: r,
        },
    ),
    Exercise(
        "7.2",
        "PPO's clip as a mask",
        difficulty=2,
        minutes=10,
        solution=solutions.ppo_mask,
        cases=_MASK_CASES,
        mistakes={
            "You mask both sides for both signs. A token that comes back stays.": _kept(
                lambda r, a, low, high: (r >= 1 - low) & (r <= 1 + high)
            ),
            "The signs are swapped: Â > 0 stops above, Â < 0 below.": _kept(
                lambda r, a, low, high: (
                    ~(((a < 0) & (r > 1 + high)) | ((a > 0) & (r < 1 - low)))
                )
            ),
            "That marks the tokens that are masked; M is 1 where they are kept.": (
                lambda *case: 1 - solutions.ppo_mask(*case)
            ),
            "Bad tokens have a bound too: Â < 0 and r < 1 − ε_low.": _kept(
                lambda r, a, low, high: ~((a > 0) & (r > 1 + high))
            ),
        },
    ),
    Exercise(
        "7.3",
        "The gradient of the objective",
        difficulty=3,
        minutes=15,
        solution=solutions.cispo_gradient,
        cases=((_LOGP, _OLD, _VALUES, 5.0), (_LOGP, _OLD, _VALUES, 1.5)),
        mistakes={
            "A gradient went through the weight: detach it before the product.": (
                _weighed(
                    lambda r, logp, cap: torch.where(
                        r < cap, r * (1 + logp), torch.full_like(r, cap)
                    )
                )
            ),
            "You clipped the surrogate: a capped token must keep its gradient.": (
                _weighed(lambda r, logp, cap: r.masked_fill(r > cap, 0))
            ),
            "You returned the objective's terms, not its gradient.": (
                _weighed(lambda r, logp, cap: r.clamp(max=cap) * logp)
            ),
            "Take the mean over the tokens, not the sum.": (
                lambda *case: solutions.cispo_gradient(*case) * len(case[0])
            ),
            "That is the gradient of the loss; J is to be maximised.": (
                lambda *case: -solutions.cispo_gradient(*case)
            ),
            "The ratio is π_θ/π_old: you turned it round.": (
                lambda logp, old_logp, a, cap: (
                    (old_logp - logp).exp().clamp(max=cap) * a / len(logp)
                )
            ),
        },
    ),
    Exercise(
        "7.4",
        "The same cap in verl",
        difficulty=1,
        minutes=5,
        solution=solutions.BOUND,
        mistakes={
            "verl adds 1: with 5 its cap would be 6.": 5.0,
            "That is the cap you would get with 5. Which number gives 5?": 6.0,
            "That is verl's default for PPO; the cap would be 1.2.": 0.2,
        },
    ),
    Exercise(
        "7.5",
        "Where the loss turns round",
        difficulty=3,
        minutes=10,
        solution=solutions.TURNING_POINT,
        mistakes={
            "That is log π there; the probability was asked for.": -1.0,
            "1 is where the loss is 0, not where it turns.": 1.0,
            "Half is where the entropy of one choice turns, not π log π.": 0.5,
            "You solved log π = +1; a probability is never above 1.": math.e,
        },
    ),
)
