"""Exercises of chapter 08: GMPO's loss, a wild token, a clipped product, a bug."""

import math
from dataclasses import replace

import torch

from course.kit.exercise import Exercise
from course.kit.usual import batch, usual
from refimpl.algorithms import ALGORITHMS, Objective, Tokens


def gmpo_loss(logp, old_logp, advantages, mask, low=0.4, high=0.4):
    """-(1/G) Σ_i Â_i exp((1/|o_i|) Σ_t z'_t), z clipped on the advantage's side."""
    A = advantages[:, None]
    z = logp - old_logp
    z = torch.where(A > 0, z.clamp(max=high), z.clamp(min=-low))
    s = ((z * mask).sum(1) / mask.sum(1)).exp()  # one number for each answer
    return -(s * advantages).mean()


def _one_sided(z, A, low, high):
    return torch.where(A > 0, z.clamp(max=high), z.clamp(min=-low))


def _only_free_tokens(logp, old_logp, advantages, mask, low=0.4, high=0.4):
    """The geometric mean over the tokens that were not clipped."""
    z = logp - old_logp
    free = mask * (_one_sided(z, advantages[:, None], low, high) == z)
    s = ((z * free).sum(1) / free.sum(1).clamp(min=1)).exp()
    return -(s * advantages).mean()


def _clip_of_the_mean(logp, old_logp, advantages, mask, low=0.4, high=0.4):
    z = logp - old_logp
    mean = (z * mask).sum(1) / mask.sum(1)
    return -(_one_sided(mean, advantages, low, high).exp() * advantages).mean()


def _clip_of_the_product(logp, old_logp, advantages, mask, low=0.4, high=0.4):
    whole = ((logp - old_logp) * mask).sum(1)
    s = (_one_sided(whole, advantages, low, high) / mask.sum(1)).exp()
    return -(s * advantages).mean()


TYPED = (
    Exercise(
        "08.gmpo_loss",
        solution=gmpo_loss,
        cases=(batch(0.8), (*batch(), 0.2, 0.5)),
        gradient=True,
        mistakes={
            **usual(gmpo_loss),
            "You clip on both sides. A token that comes back must keep its gradient.": {
                "max=high": "-low, high",
                "min=-low": "-low, high",
            },
            "The clip looks at the sign of Â: from above for Â > 0, from below for "
            "Â < 0.": {"A > 0": "A < 0"},
            "You bound bad answers from above too. Their tokens move down.": {
                "min=-low": "max=high"
            },
            "Nothing is clipped here: that is GSPO without its own clip.": {
                "z.clamp(max=high), z.clamp(min=-low)": "z, z"
            },
            "Your bounds are 1 ± 0.4 on the ratio. GMPO's are on its logarithm.": {
                "max=high": "max=math.log(1 + high)",
                "min=-low": "min=math.log(1 - low)",
            },
            "That is the arithmetic mean. Average the log-ratios, and then take exp.": {
                "(z * mask)": "(z.exp() * mask)",
                "sum(1)).exp()": "sum(1))",
            },
            "That is the product without its root: divide the sum by |o|.": {
                " / mask.sum(1)": ""
            },
            "Padding counts in your mean. Multiply by the mask.": {"(z * mask)": "z"},
            "You divide by T, the padded width, instead of |o|.": {
                "(z * mask).sum(1) / mask.sum(1)": "(z * mask).mean(1)"
            },
            "That is the sum over answers. The objective is their mean.": {
                ".mean()": ".sum()"
            },
            "A clipped token loses its gradient, but it stays in the mean, at its "
            "bound.": _only_free_tokens,
            "You clip the answer's mean. Clip every token's log-ratio before it.": (
                _clip_of_the_mean
            ),
            "You clip the sum, which is the whole product. Clip every token.": (
                _clip_of_the_product
            ),
        },
    ),
)


def _bounds_of_ratios(t: Tokens) -> Objective:
    """GMPO with e^-0.4 and e^0.4, the bounds of r, as bounds of the log-ratio."""
    low, high = math.exp(-0.4), math.exp(0.4)
    gmpo = ALGORITHMS["gmpo"]
    return gmpo.objective(t, epsilon_low=-low, epsilon_high=high)


BROKEN = replace(ALGORITHMS["gmpo"], objective=_bounds_of_ratios)
"""The run of exercise 8.3, for `train`."""


EXERCISES = (
    Exercise(
        "8.1",
        solution=1.1,
        decimals=1,
        why="The wild token counts as e^0.4, so s = e^(0.4/4) = 1.105.",
        mistakes={
            "In GRPO, yes: there a neighbour's ratio does not matter. Here the wild "
            "token lifts the mean.": 1.0,
            "The wild token is clipped: it counts as e^0.4 and not as 20.": 2.1,
            "That is the wild token's bound, e^0.4; it is one of four in the mean.": (
                1.5
            ),
            "That is the arithmetic mean of the ratios.": 5.8,
            "That is the coefficient of the clipped token. The question asks for its "
            "neighbours'.": (0.0),
        },
    ),
    Exercise(
        "8.2",
        solution=0.0004,
        why="The sum of a thousand equal log-ratios is 0.4 if each is 0.4/1000.",
        mistakes={
            "That is the bound of the sum. Each of a thousand tokens has its share.": (
                0.4
            ),
            "That is the ratio's bound, e^0.4. The question asks for a token's "
            "log-ratio.": 1.49,
            "Close, but that is the ratio; the question asks for its log.": 1.0004,
            "Divide by a thousand, not by a hundred.": 0.004,
        },
    ),
    Exercise(
        "8.3",
        solution="6b",
        why="z is a log-ratio, and its bounds are ∓0.4. With e^∓0.4, every z of a bad "
        "response is below the lower bound of 0.67 even on policy, so bad "
        "responses have no gradient.",
        lines=10,
        mistakes={
            "That is the line, but for another reason: both bounds are 0.4 in the "
            "paper, and a wide clip does not stop tokens that have not moved.": "6a",
            "That is the line, but for another reason: GMPO has one bound for each "
            "sign of the advantage.": "6c",
            "That is the line, but for another reason: clipping comes before the "
            "mean.": "6d",
            "Line 7 uses the bounds as it should: above for good responses, below for "
            "bad ones. Where do the bounds come from?": "7b",
            "Line 7 is right: min for good responses, max for bad ones.": "7c",
            "Line 8 is right: the mean of the clipped log-ratios, then exp.": "8d",
            "Line 5 is right: z is the log-ratio. Which line treats it as if it were a "
            "ratio?": "5b",
        },
    ),
)
