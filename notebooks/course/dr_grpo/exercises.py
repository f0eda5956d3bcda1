"""Exercises of chapter 04: Dr. GRPO's loss, the token mean, a plot, a bug."""

import torch

from course.kit.exercise import Exercise


def dr_grpo_loss(logp, old_logp, rewards, mask, limit, epsilon=0.2):
    """−(1/(G L_max)) Σ min(r Ã, clip(r) Ã), Ã = R − mean R."""
    A = (rewards - rewards.mean())[:, None]
    r = (logp - old_logp).exp()
    clipped = r.clamp(1 - epsilon, 1 + epsilon)
    weight = mask / (len(mask) * limit)
    return -(weight * torch.minimum(r * A, clipped * A)).sum()


def _by_rows(logp, old_logp, rewards, mask, limit, epsilon=0.2):
    """Row by row, and a sum at the end."""
    losses = []
    for row in range(len(rewards)):
        a, own = rewards[row] - rewards.mean(), mask[row].bool()
        r = (logp[row] - old_logp[row])[own].exp()
        both = torch.stack([r * a, r.clamp(1 - epsilon, 1 + epsilon) * a])
        losses.append(both.min(0).values.sum() / limit)
    return -sum(losses) / len(losses)


_MASK = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 0]]).double()  # a hole
_OLD = torch.tensor([[0.2, 0.5, 0.3, 0.6], [0.3, 0.4, 0.2, 0.5], [0.4, 0.1, 0.5, 0.5]])
_MOVED = torch.tensor([[0.4, -0.3, 0.1, 0.0], [0.3, 3, -0.4, 0.1], [-0.3, 0.2, 2, 2.0]])
_BATCH = (
    (_OLD.log() + _MOVED).double(),
    _OLD.log().double(),
    torch.tensor([1.0, 0.0, 0.5]).double(),
    _MASK,
)

TYPED = (
    Exercise(
        "04.dr_grpo_loss",
        minutes=10,
        solution=dr_grpo_loss,
        also=(_by_rows,),
        cases=((*_BATCH, 8), (*_BATCH, 48, 0.1)),
        gradient=True,
        mistakes={
            "The loss is minus the objective: its descent raises the objective.": {
                "-(w": "(w"
            },
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
            "Take the smaller of r·A and clip(r)·A. You clip always.": {
                "r * A, ": "clipped * A, "
            },
            "Take the smaller of the two, also for A < 0.": {"minimum": "maximum"},
            "The clip is missing.": {"clipped * A)": "r * A)"},
        },
    ),
)


EXERCISES = (
    Exercise(
        "4.1",
        minutes=10,
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
        minutes=5,
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
            "The rise from 0.01 to 0.11 is 0.15, that from 0.45 to 0.55 is 0.06.": (
                "half as much"
            ),
        },
    ),
    Exercise(
        "4.3",
        minutes=10,
        parts=("line", "reason"),
        choices=((*range(1, 11),), ("a", "b", "c", "d")),
        solution=(2, "c"),
        why="EOS both ends a response and pads it, so this mask removes the token "
        "that ends the response from the loss. Only tokens that continue are "
        "left. Right responses make them likelier and never end; wrong ones make "
        "them less likely and shrink. Keep the first EOS in the mask.",
        mistakes={
            "A constant divisor favours no length, and line 9 is right.": (9, "a"),
            "Dr. GRPO leaves the std out, and line 4 is right.": (4, "b"),
            "Old log-probs are taken once, before the updates.": (5, "d"),
            "That is the line. What does it take away, and what does that token do?": (
                2,
                "a",
            ),
        },
    ),
)
