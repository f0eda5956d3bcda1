"""Exercises of chapter 02b: the KL as loss and as reward, value clip, Adam."""

import torch

from course.kit.by_hand import answers
from course.kit.exercise import Exercise
from course.kit.usual import usual


def k3_loss(logp, ref_logp, mask, beta=0.1):
    d = logp - ref_logp
    k3 = (-d).exp() - 1 + d  # never below 0
    w = mask / mask.sum()
    return beta * (w * k3).sum()


def token_rewards(score, logp, ref_logp, beta):
    """−β k1 at every token, and the score at the last one."""
    rewards = -beta * (logp - ref_logp)
    rewards[-1] += score
    return rewards


def clipped_value_loss(value, old_value, target, epsilon):
    """½ max of the two squared errors: the clip may not make the loss smaller."""
    clipped = old_value + (value - old_value).clamp(-epsilon, epsilon)
    return torch.maximum((value - target) ** 2, (clipped - target) ** 2) / 2


_ONE = answers()
_REF3 = _ONE.old_logp + torch.tensor(
    [[0.2, -0.4, 0.1, 2.0], [0.0, 0.5, -0.3, 0.2], [-0.6, 0.3, 1.0, -1.0]]
)
_HOLE = torch.tensor([[1.0, 0, 1, 0], [1, 1, 0, 1], [1, 1, 0, 0]]).double()


_LOGP = torch.tensor([-0.1, -1.0, -3.0])
_REF = torch.tensor([-0.5, -1.0, -1.5])

_V = torch.tensor([-0.4, 0.1, 0.5, 1.4])
_V_OLD = torch.tensor([0.0, 0.0, 0.3, 0.2])
_TARGET = torch.tensor([1.0, 0.8, 0.5, 1.0])


TYPED = (
    Exercise(
        "02b.k3_loss",
        solution=k3_loss,
        cases=(
            (_ONE.logp, _REF3, _ONE.mask),
            (_ONE.logp, _REF3, _ONE.mask, 0.5),
            (_ONE.logp, _REF3, _HOLE, 0.2),
        ),
        gradient=True,
        mistakes={
            **usual(k3_loss),
            "π_ref is on top: k3 is e^(−d) − 1 + d. You have e^d − 1 − d, whose mean "
            "is no KL.": {"logp - ref_logp": "ref_logp - logp"},
            "That is k1. As a loss, its gradient is 0 on average.": {
                "(-d).exp() - 1 + d": "d"
            },
            "That is k2, ½ d². It is a good loss, but here k3 is asked for.": {
                "(-d).exp() - 1 + d": "d**2 / 2"
            },
            "A price is added to a loss: yours has the other sign.": {
                "beta * (w": "-beta * (w"
            },
            "The −1 is missing: at d = 0 the price is 0.": {" - 1": ""},
            "The value is right, but d is detached in the exponential. Then only k1's "
            "gradient is left.": {"(-d)": "(-d).detach()"},
        },
    ),
)

EXERCISES = (
    Exercise(
        "2b.1",
        solution="stays",
        choices=("falls", "falls slowly", "stays", "rises"),
        why="The expected gradient of k1 is the mean score, Σ π ∇log π = ∇ Σ π = 0. "
        "Its value follows the KL, its gradient does not.",
        mistakes={
            "The value of k1 is right on average. But training follows its gradient: "
            "what is ∇k1 = ∇log π, averaged over π?": "falls",
            "A gradient that pushes away from the reference would have to point "
            "somewhere. What is the mean of ∇log π under π?": "rises",
            "If the gradient were merely smaller, more steps would be enough. But how "
            "large is the mean of ∇k1 = ∇log π under π?": "falls slowly",
        },
    ),
    Exercise(
        "2b.2",
        solution=("k3", "k1"),
        choices=(("k1", "k2", "k3"), ("k1", "k2", "k3")),
        why="At d = −2 the slopes are 1 (k1), −2 (k2) and 1 − e² = −6.4 (k3).",
        parts=("pulls back hardest", "pushes further away"),
        mistakes={
            "The first is right. k2 pulls back too, though less strongly: its slope "
            "at d = −2 is −2. Look for a slope above 0.": ("k3", "k2"),
            "Compare how far below 0 the slopes lie at d = −2: k3's −6.4, k2's −2.": (
                ("k2", "k1")
            ),
            "It is the other way round: a loss with a positive slope falls when d "
            "falls, and d = −2 is already too low.": ("k1", "k3"),
            "k2 pulls hardest at d = +2, where the slopes are positive and push the "
            "token down again. For d = −2 look at the left end.": ("k2", "k3"),
        },
    ),
    Exercise(
        "2b.3",
        solution=1.0,
        choices=(0.01, 0.1, 1.0, 100.0),
        why="Adam divides the mean gradient by the root of the mean square, and both "
        "shrink alike. A step is as large as before.",
        mistakes={
            "That would be true of plain SGD. Adam divides the gradient by its own "
            "size.": 0.01,
            "m shrinks by 100 and v by 100². What is left of m/√v?": 0.1,
            "Adam divides by √v, not by v, so the limit cancels exactly.": (100.0),
        },
    ),
    Exercise(
        "2b.4",
        solution=token_rewards,
        cases=((1.0, _LOGP, _REF, 0.1), (0.0, _LOGP, _REF, 0.5)),
        mistakes={
            "The score is given once, at the last token.": {"rewards[-1]": "rewards"},
            "The KL is a price: subtract it.": {"-beta": "beta"},
            "The last token has a KL, too: add the score to that, do not replace it.": {
                "+= score": "= score"
            },
            "Every token has a price of its own, not only the last.": {
                "+= score": "= score + rewards.sum()\n    rewards[:-1] = 0"
            },
            "In the reward k1 is right: the score function turns it into the KL's "
            "gradient. k3 there would not.": {
                "(logp - ref_logp)": "((ref_logp - logp).exp() - 1 + logp - ref_logp)"
            },
        },
    ),
    Exercise(
        "2b.5",
        solution=clipped_value_loss,
        cases=((_V, _V_OLD, _TARGET, 0.2),),
        mistakes={
            "min rewards the clip with a smaller loss. A loss takes the max, as the "
            "objective takes the min: the pessimistic one.": {"maximum": "minimum"},
            "The clipped error alone has no gradient outside V_old ± ε, also when V "
            "went the wrong way. Take the max with the plain error.": {
                "(value - target)": "(clipped - target)"
            },
            "That is the plain squared error: nothing is clipped (a clip around the "
            "target does nothing either). Clip V around V_old.": {
                "(clipped - target)": "(value - target)"
            },
            "V is no ratio: clip the change V − V_old to ±ε, not V to 1 ± ε.": {
                "old_value + (value - old_value)": "value",
                "(-epsilon, ": "(1 - epsilon, 1 + ",
            },
            "The ½ is missing.": {" / 2": ""},
        },
    ),
)
