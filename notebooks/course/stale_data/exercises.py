"""Exercises of chapter 01b: what the ratio does to a push, the exact weight.

`TYPED` are the functions that a reader types in the chapter.
"""

from torch import Tensor

from course.kit.exercise import Exercise
from course.kit.usual import batch, from_the_left, usual


def response_weight(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """Π_t π_θ / π_old over the response's own tokens: the exp of a masked sum."""
    return ((logp - old_logp) * mask).sum(-1).exp()


def surrogate_loss(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, mask: Tensor
) -> Tensor:
    """−r A, averaged in the same way."""
    r = (logp - old_logp).exp()
    w = mask / (len(mask) * mask.sum(1, keepdim=True))
    return -(w * r * advantages[:, None]).sum()


EXERCISES = (
    Exercise(
        "1b.1",
        solution=("grows", "shrinks"),
        parts=("good", "bad"),
        choices=(("grows", "shrinks", "stays"), ("grows", "shrinks", "stays")),
        why="With the ratio c = r. A good token becomes likelier, so its r rises "
        "above 1, and a bad one becomes rarer, so its r falls below 1.",
        mistakes={
            "That is right for the good token. The bad one becomes rarer with every "
            "update: where does its r go, and c with it?": ("grows", "grows"),
            "That is how it would be without the ratio. Here c = r, and r moves with "
            "every update.": ("stays", "stays"),
            "The other way round. The advantage decides in which direction a token "
            "moves, and c = r follows the token.": ("shrinks", "grows"),
            "That is right for the good token. The bad one moves as well, and c = r "
            "follows it.": ("grows", "stays"),
            "That is right for the bad token. The good one becomes likelier with every "
            "update: where does its r go, and c with it?": ("shrinks", "shrinks"),
        },
    ),
    Exercise(
        "1b.2",
        solution=response_weight,
        cases=(batch(2.0)[:2] + batch()[3:],),
        mistakes={
            "That is the mean of the token ratios. Probabilities multiply.": {
                "(logp - old_logp)": "(logp - old_logp).exp()",
                "sum(-1).exp()": "sum(-1) / mask.sum(-1)",
            },
            "That is the geometric mean (GSPO, chapter 05), which does not correct "
            "the distribution.": {".exp()": ".div(mask.sum(-1)).exp()"},
            "You multiply padding in: mask the log-ratios before the sum.": {
                " * mask": ""
            },
            "A product of masked ratios is 0 as soon as a row has padding: there, each "
            "factor must be 1.": {" * mask).sum(-1).exp()": ".exp() * mask).prod(-1)"},
            "Upside down: the data came from π_old, so π_old is below.": {
                "logp - old_logp": "old_logp - logp"
            },
            "That is the log of the weight; take exp.": {".exp()": ""},
            "You take the mean of the log-ratios, which is a root. Add them up.": {
                "sum(-1)": "mean(-1)"
            },
            "That is one number for the whole batch. Each response has a weight of its "
            "own: sum over dim -1.": {"sum(-1)": "sum()"},
            "Masked log-ratios have the ratio 1 in padding, and you add ratios. Add "
            "the log-ratios first, and take exp at the end.": {
                "sum(-1).exp()": "exp().sum(-1)"
            },
            "`logp` and `old_logp` are logarithms, whose quotient means nothing. The "
            "ratio of the probabilities is the exp of their difference.": [
                lambda logp, old, mask: (logp / old * mask).sum(-1),
                lambda logp, old, mask: (logp * mask).sum(-1) / (old * mask).sum(-1),
                lambda logp, old, mask: logp / old,
            ],
            "Do not add ratios: add log-ratios, then take exp.": {
                " * mask).sum(-1).exp()": ".exp() * mask).sum(-1)"
            },
            "Nothing limits the exact weight. A cap makes it less noisy, and biased.": {
                ".exp()": ".exp().clamp(max=2)"
            },
            "You clip each token's ratio, which PPO does. The exact weight has no "
            "clip.": {"(logp - old_logp)": "(logp - old_logp).clamp(-0.2, 0.2)"},
            **from_the_left(response_weight),
            "You keep tokens only up to the first hole. Leave the hole out, but count "
            "the tokens after it.": {"* mask": "* mask.cumprod(-1)"},
        },
    ),
    Exercise(
        "1b.4",
        solution="by imitation",
        why="In SFT somebody else wrote the answers. The advantage is as if it were 1.",
        choices=("by imitation", "by reward", "by comparison"),
        mistakes={
            "SFT has no verifier and no reward: it raises the log-probability of "
            "every demonstration alike.": "by reward",
            "Answers are compared in a group, in RL. SFT raises the log-probability "
            "of every demonstration alike.": "by comparison",
        },
    ),
    Exercise(
        "1b.5",
        solution="not at all",
        why="A constant raises an answer's reward and the others' mean alike, so the "
        "difference stays the same.",
        choices=("not at all", "all become positive", "all double"),
        mistakes={
            "Without a baseline they would. But the mean of the others rises by 1 as "
            "well, and it is subtracted.": "all become positive",
            "They would double if the rewards became 0 and 2. Here 1 is added to all "
            "of them.": "all double",
        },
    ),
    Exercise(
        "1b.6",
        solution="nothing",
        why="A policy-gradient loss measures no error. Only its gradient means "
        "something, on these data and at this policy.",
        choices=("nothing", "that the policy gets worse", "that the rate is too high"),
        mistakes={
            "In supervised learning, yes. But this loss measures no error: in our runs "
            "it rose while the policy improved.": "that the policy gets worse",
            "The loss rises at a good rate as well. The reward tells whether training "
            "goes well.": "that the rate is too high",
        },
    ),
)


TYPED = (
    Exercise(
        "01b.surrogate_loss",
        solution=surrogate_loss,
        gradient=True,
        cases=(batch(),),
        mistakes={
            **usual(surrogate_loss),
            "You detached the ratio. It is the only place where log π appears, so no "
            "gradient is left.": {".exp()": ".exp().detach()"},
            "The gradient is right, but the value is not: with a detached ratio before "
            "log π you wrote CISPO's form (chapter 07). Here the objective is r A.": {
                ".exp()": ".exp().detach()",
                "w * r": "w * r * logp",
            },
            "The mask is inside the exponent, where padding gets the ratio 1 and "
            "counts. Multiply the terms by the mask as well.": {
                "(logp - old_logp).exp()": "((logp - old_logp) * mask).exp()",
                "w = mask / (": "w = 1 / (",
            },
            "That is a clip, which chapter 02 adds. Here nothing limits the ratio.": {
                ".exp()": ".exp().clamp(0.8, 1.2)"
            },
            "That is the loss for fresh data. Where is the ratio?": {
                "w * r": "w * logp"
            },
            "That is the product over the response, which is exact but noisy. Here "
            "each token has its own ratio.": {
                "r = (logp - old_logp).exp()": (
                    "r = response_weight(logp, old_logp, mask)[:, None]"
                )
            },
            "The ratio multiplies log π as well. r A alone has the right gradient, "
            "because ∇r = r∇log π.": {"w * r": "w * r * logp"},
        },
    ),
)
