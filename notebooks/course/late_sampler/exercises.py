"""Exercises of chapter 15: a late sampler, truncation, levels, two corrections."""

import torch

from course.kit.exercise import Exercise
from course.kit.usual import batch, usual


def trained_on(pi, mu, cap):
    """15.2: μ · min(π/μ, C), divided by its sum."""
    kept = [min(p, cap * q) for p, q in zip(pi, mu)]
    return [x / sum(kept) for x in kept]


def _masked(pi, mu, cap):
    kept = [p if p <= cap * q else 0.0 for p, q in zip(pi, mu)]
    return [x / (sum(kept) or 1.0) for x in kept]


def corrected_grpo(logp, old_logp, mu_logp, rewards, mask):
    """GRPO with IcePop's band."""
    A = ((rewards - rewards.mean()) / (rewards.std() + 1e-6))[:, None]
    w = (old_logp - mu_logp).exp()
    w = w * ((w >= 0.5) & (w <= 5.0))
    r = (logp - old_logp).exp()
    clipped = r.clamp(0.8, 1.2)
    weight = mask / (len(mask) * mask.sum(1, keepdim=True))
    return -(weight * w * torch.minimum(r * A, clipped * A)).sum()


_MU = batch(1.2, seed=2)[0]

TYPED = (
    Exercise(
        "15.corrected_grpo",
        solution=corrected_grpo,
        cases=((*batch()[:2], _MU, torch.tensor([1.0, 0, 0, 1]), batch()[3]),),
        gradient=True,
        mistakes={
            **usual(corrected_grpo),
            "A weight outside the band becomes 0. You hold it at the edge.": {
                "w * ((w >= 0.5) & (w <= 5.0))": "w.clamp(0.5, 5.0)"
            },
            "Inside the band a token keeps its weight; you give it 1.": {
                "w * ((w": "1.0 * ((w"
            },
            "The band is missing.": {" * ((w >= 0.5) & (w <= 5.0))": ""},
            "Upside down: the weight is π_old over μ.": {
                "old_logp - mu_logp": "mu_logp - old_logp"
            },
            "The weight compares π_old with μ. Yours has π_θ, which the ratio has "
            "already.": {"(old_logp - mu": "(logp.detach() - mu"},
            "The clip is for r alone; you clip the product w r.": {
                "clipped = r": "r = w * r\n    clipped = r",
                "weight * w": "weight",
            },
        },
    ),
)

EXERCISES = (
    Exercise(
        "15.1",
        solution=0.0,
        why="π_old is computed from the weights that make the first update, so "
        "π_θ/π_old is 1 for every token, however old the sampler is.",
        mistakes={
            "That is the share against the sampler. The clip compares with π_old, "
            "which was computed a moment ago.": 0.1,
            "They are far from the sampler's probabilities, but does the clip use "
            "those?": 1.0,
            "That is its ε. How far is a policy from itself?": 0.2,
        },
    ),
    Exercise(
        "15.2",
        solution=trained_on,
        cases=(
            ([0.6, 0.3, 0.1], [0.2, 0.4, 0.4], 2.0),
            ([0.5, 0.5], [0.25, 0.75], 1.5),
            ([0.9, 0.1], [0.3, 0.7], 1.0),
        ),
        mistakes={
            "That masks: a token above the cap is gone. Truncation holds it at C μ.": (
                _masked
            ),
            "You did not divide by the sum.": lambda pi, mu, cap: [
                min(p, cap * q) for p, q in zip(pi, mu)
            ],
            "Those are the weights. A token is also drawn with probability μ.": (
                lambda pi, mu, cap: [min(p / q, cap) for p, q in zip(pi, mu)]
            ),
            "That is the policy. Which tokens cannot reach it?": (
                lambda pi, mu, cap: list(pi)
            ),
        },
    ),
    Exercise(
        "15.3",
        solution=256,
        why="The line *sequence* of the right panel is at 0.4 for 64 tokens, 1.95 for "
        "256.",
        mistakes={
            "There the standard deviation is 0.16.": 16,
            "There it is 0.4 of the gradient, which is less than 1.": 64,
            "There it is 0.75, still below 1.": 128,
            "There it is above 100. It passed 1 at an earlier length.": 1024,
        },
    ),
    Exercise(
        "15.4",
        solution="5c",
        lines=7,
        why="`old` comes from the sampler already, so `ratio` is π_θ/μ, and w "
        "multiplies by the learner's distance to the sampler a second time. Leave the "
        "weight out.",
        mistakes={
            "Line 2 is right: that is the two-policy mode.": "2a",
            "A one-sided cap is no error. What does w correct here?": "5b",
            "A weight must not have a gradient. What does it correct here?": "5d",
            "Line 7 is right by itself. What is left for w to correct?": "7c",
        },
    ),
)
