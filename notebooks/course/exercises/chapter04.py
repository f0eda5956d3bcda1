"""Exercises of chapter 04: token weights, length pressure, the loss, the pull."""

import math

import torch

from course.exercises import Exercise
from course.exercises.solutions import chapter04 as solutions

_RATIO = torch.tensor(
    [[1.5, 1.0, 0.6, 0.9], [0.6, 1.5, 1.0, 1.0], [1.1, 0.7, 1.3, 1.0]]
)
_MASK = torch.tensor([[1.0, 1, 1, 1], [1.0, 1, 0, 0], [1.0, 1, 1, 0]])
_REWARDS = torch.tensor([1.0, 0.0, 0.0])


def _loss(ratio, rewards, mask, limit, *, std=False, how="constant", clip="min"):
    """The loss with one thing changed."""
    advantages = rewards - rewards.mean()
    if std:
        advantages = advantages / (rewards.std() + 1e-6)
    free = ratio * advantages[:, None]
    held = ratio.clamp(0.8, 1.2) * advantages[:, None]
    value = {"min": torch.minimum(free, held), "none": free, "held": held}[clip]
    totals = (value * mask).sum(-1)
    if how == "mean":
        return -(totals / mask.sum(-1)).mean().item()
    divisor = {
        "constant": len(rewards) * limit,
        "longest": len(rewards) * mask.sum(-1).max(),
        "tokens": mask.sum(),
        "sum": len(rewards),
        "group": limit,
    }[how]
    return -(totals.sum() / divisor).item()


EXERCISES = (
    Exercise(
        "4.1",
        "The weight of a token",
        difficulty=2,
        minutes=10,
        solution=solutions.token_weights,
        cases=(([10, 2, 3, 30], 48), ([4, 4], 8), ([1, 7, 16], 64)),
        mistakes={
            "You swapped them: GRPO looks at the length, Dr. GRPO does not.": (
                lambda lengths, limit: solutions.token_weights(lengths, limit)[::-1]
            ),
            "The longest response of the batch is no constant: use the limit.": (
                lambda lengths, limit: solutions.token_weights(lengths, max(lengths))
            ),
            "1/Σ|o| is the token mean (DAPO). Dr. GRPO's number knows no lengths.": (
                lambda lengths, limit: (
                    [1 / (len(lengths) * n) for n in lengths],
                    [1 / sum(lengths) for _ in lengths],
                )
            ),
            "The mean over responses stays in both: divide by their number as well.": (
                lambda lengths, limit: (
                    [1 / n for n in lengths],
                    [1 / limit for _ in lengths],
                )
            ),
            "That is the weight of the whole response. A token has 1/|o| of it.": (
                lambda lengths, limit: (
                    [1 / len(lengths) for _ in lengths],
                    [n / (len(lengths) * limit) for n in lengths],
                )
            ),
        },
    ),
    Exercise(
        "4.2",
        "Which way does the length go?",
        difficulty=3,
        minutes=5,
        solution=solutions.LENGTH_PRESSURE,
        mistakes={
            "Right and wrong are exchanged: −b/|o| is nearest 0 where |o| is large.": (
                ["shorter", "longer", "none", "none"]
            ),
            "1/|o| acts on right answers too: (1 − b)/|o| is more if |o| is small.": (
                ["longer", "none", "none", "none"]
            ),
            "R − b is positive for a right answer: a long one shares it out thinly.": (
                ["longer", "longer", "none", "none"]
            ),
            "A constant does not press the other way: E[R − b] has no length in it.": (
                ["longer", "shorter", "shorter", "longer"]
            ),
            "Not for a constant: the same divisor for all lengths favours none.": (
                ["longer", "shorter", "longer", "shorter"]
            ),
            "Equal tokens let long answers count more, but no length pays better.": (
                ["longer", "shorter", "shorter", "shorter"]
            ),
        },
    ),
    Exercise(
        "4.3",
        "Dr. GRPO's loss",
        difficulty=3,
        minutes=15,
        solution=solutions.dr_grpo_loss,
        cases=(
            (_RATIO, _REWARDS, _MASK, 8),
            (torch.ones(3, 4), _REWARDS, _MASK, 48),
            (_RATIO, torch.zeros(3), _MASK, 8),
        ),
        mistakes={
            "The sign: a loss is minimised, the objective is maximised.": (
                lambda *case: -_loss(*case)
            ),
            "The std is still there: Ã = R − mean R.": (
                lambda *case: _loss(*case, std=True)
            ),
            "That is GRPO's mean per response: sum the tokens, divide by the limit.": (
                lambda *case: _loss(*case, how="mean")
            ),
            "GRPO's mean per response, and the std: this is GRPO.": (
                lambda *case: _loss(*case, how="mean", std=True)
            ),
            "You divide by the longest response: it changes from batch to batch.": (
                lambda *case: _loss(*case, how="longest")
            ),
            "You divide by the number of tokens: that is the token mean (DAPO).": (
                lambda *case: _loss(*case, how="tokens")
            ),
            "The constant is missing: divide the sum by the limit as well.": (
                lambda *case: _loss(*case, how="sum")
            ),
            "The mean over the G responses is missing.": (
                lambda *case: _loss(*case, how="group")
            ),
            "The clip is missing: min(r Ã, clip(r) Ã).": (
                lambda *case: _loss(*case, clip="none")
            ),
            "The min is missing: clip(r) Ã alone has no way back (chapter 02).": (
                lambda *case: _loss(*case, clip="held")
            ),
            "The mask is missing: padding is no text.": (
                lambda ratio, rewards, mask, limit: _loss(
                    ratio, rewards, torch.ones_like(mask), limit
                )
            ),
        },
    ),
    Exercise(
        "4.4",
        "The pull of a prompt",
        difficulty=2,
        minutes=5,
        solution=solutions.pull,
        cases=((0, 8), (1, 8), (4, 8), (15, 16)),
        mistakes={
            "That is with the std (ddof 0): √(k(G−k)). Dr. GRPO does not divide.": (
                lambda k, size: 2 * math.sqrt(k * (size - k))
            ),
            "That is with the sample std (ddof 1). Dr. GRPO does not divide.": (
                lambda k, size: 2 * math.sqrt(k * (size - k) * (size - 1) / size)
            ),
            "Only the right answers: the wrong ones push as hard, the other way.": (
                lambda k, size: k * (size - k) / size
            ),
            "That is the mean over the group. Asked is the sum.": (
                lambda k, size: 2 * k * (size - k) / size**2
            ),
            "That is leave-one-out, larger by G/(G−1).": (
                lambda k, size: 2 * k * (size - k) / (size - 1)
            ),
            "Without |·| the advantages of a group always add up to 0.": (
                lambda k, size: 0.0
            ),
        },
    ),
)
