"""Exercises of chapter 04: Dr. GRPO's loss, the token mean, a plot, a bug."""

import torch

from course.kit.exercise import Exercise
from course.kit.usual import batch, usual


def dr_grpo_loss(logp, old_logp, rewards, mask, limit, epsilon=0.2):
    """−(1/(G L_max)) Σ min(r Ã, clip(r) Ã), Ã = R − mean R."""
    A = (rewards - rewards.mean())[:, None]
    r = (logp - old_logp).exp()
    clipped = r.clamp(1 - epsilon, 1 + epsilon)
    weight = mask / (len(mask) * limit)
    return -(weight * torch.minimum(r * A, clipped * A)).sum()


TYPED = (
    Exercise(
        "04.dr_grpo_loss",
        solution=dr_grpo_loss,
        cases=((*batch(), 8), (*batch(), 48, 0.1)),
        gradient=True,
        mistakes={
            **usual(dr_grpo_loss),
            "The std is gone: Ã is the reward minus the group's mean.": {
                "(rewards - rewards.mean())": (
                    "((rewards - rewards.mean()) / (rewards.std() + 1e-6))"
                )
            },
            "The baseline is missing: subtract the group's mean reward.": {
                " - rewards.mean()": ""
            },
            "Every token weighs the same: divide by the constant, not by |o|.": {
                "(len(mask) * limit)": "(len(mask) * mask.sum(1, keepdim=True))"
            },
            "That is the mean over all tokens (DAPO). Dr. GRPO's divisor is a "
            "constant.": {"(len(mask) * limit)": "mask.sum()"},
            "The mean over responses stays: divide by their number as well.": {
                "(len(mask) * limit)": "limit"
            },
            "Divide by the number of responses and by the limit; you left out the "
            "limit.": {" * limit": ""},
            "Padding counts in your sum. Multiply by the mask.": {"= mask /": "= 1 /"},
        },
    ),
)


EXERCISES = (
    Exercise(
        "4.1",
        solution=["shorter", "longer"],
        why="The divisor includes the response's own length, so a token of a long "
        "response is divided by more. The pull has GRPO's direction but is "
        "weaker, and it nearly vanishes in a large batch, where one length hardly "
        "matters.",
        parts=("the right response", "the wrong response"),
        mistakes={
            "Within a batch the weights are equal, but the divisor includes the "
            "response's own length: a long response makes all tokens weigh less.": (
                ["none", "none"]
            ),
            "You have exchanged the two. A longer response divides its punishment by "
            "more, so a wrong one gets longer. Its reward shrinks too, so a right one "
            "gets shorter.": (["longer", "shorter"]),
            "Both are divided by the same sum, so the right one is pushed as well.": (
                ["none", "longer"]
            ),
            "Both are divided by the same sum, so the wrong one is pushed as well.": (
                ["shorter", "none"]
            ),
            "Right and wrong responses have advantages of opposite sign, so they are "
            "pushed in opposite directions.": (["shorter", "shorter"]),
            "A reward that is divided by more is smaller, so the right one gets "
            "shorter.": (["longer", "longer"]),
        },
    ),
    Exercise(
        "4.2",
        solution="twice as much",
        why="(2/π)(arcsin √0.11 − arcsin √0.01) = 0.15, and 0.06 for 0.45 to 0.55: 2.4 "
        "times.",
        choices=("as much", "twice as much", "ten times as much"),
        mistakes={
            "That is Dr. GRPO's straight line. GRPO's curve is steeper near p = 0.": (
                "as much"
            ),
            "The slope at p = 0 is large, but read the two heights: 0.06 and 0.22.": (
                "ten times as much"
            ),
        },
    ),
    Exercise(
        "4.3",
        lines=10,
        solution="2c",
        why="EOS both ends a response and pads it, so this mask removes the token "
        "that ends the response from the loss. Only tokens that continue are "
        "left. Right responses make them likelier and never end; wrong ones make "
        "them less likely and shrink. Keep the first EOS in the mask.",
        mistakes={
            "A constant divisor favours no length, and line 9 is right.": "9a",
            "Dr. GRPO leaves the std out, and line 4 is right.": "4b",
            "Old log-probs are taken once, before the updates.": "5d",
            "That is the line. What does it take away, and what does that token "
            "do?": "2a",
        },
    ),
)
