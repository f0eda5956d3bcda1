"""Exercises of chapter 01: score function, baselines, importance weights, a bug.

`TYPED` are the functions that a reader types in the chapter.
"""

import torch
from torch import Tensor

from course.kit.exercise import Exercise
from course.kit.usual import batch, usual


def score_gradient(probs: Tensor, actions: Tensor, rewards: Tensor) -> Tensor:
    """Mean over samples of R · ∇log π(a), with ∇log π(a) = onehot(a) − π for logits."""
    chosen = torch.nn.functional.one_hot(actions, len(probs)).to(probs.dtype)
    return (rewards[:, None] * (chosen - probs)).mean(0)


def response_weight(logp: Tensor, old_logp: Tensor, mask: Tensor) -> Tensor:
    """Π_t π_θ / π_old over the response's own tokens: the exp of a masked sum."""
    return ((logp - old_logp) * mask).sum(-1).exp()


def leave_one_out(rewards: Tensor, G: int) -> Tensor:
    """R_i minus the mean reward of the other G − 1 answers to the same prompt."""
    R = rewards.view(-1, G)
    b = (R.sum(-1, keepdim=True) - R) / (G - 1)
    return (R - b).view(-1)


def reinforce_loss(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """−A log π, averaged over a response's tokens, then over responses."""
    w = mask / (len(mask) * mask.sum(1, keepdim=True))
    return -(w * advantages[:, None] * logp).sum()


def surrogate_loss(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, mask: Tensor
) -> Tensor:
    """−r A, averaged in the same way."""
    r = (logp - old_logp).exp()
    w = mask / (len(mask) * mask.sum(1, keepdim=True))
    return -(w * r * advantages[:, None]).sum()


_PROBS = torch.tensor([0.5, 0.3, 0.2])
_ACTIONS = torch.tensor([0, 2, 2, 1])
_REWARDS = torch.tensor([1.0, 0.0, 2.0, -1.0])


EXERCISES = (
    Exercise(
        "1.1",
        solution="guess",
        choices=("careful", "guess", "ramble"),
        why="What 'ramble' loses is shared out in proportion to the probabilities.",
        mistakes={
            "Nothing in this update favours 'careful', because its reward was never "
            "seen. The probability taken from 'ramble' goes to the answers that are "
            "already likely.": "careful",
            "Its advantage is negative, so its own logit is pushed down.": "ramble",
        },
    ),
    Exercise(
        "1.2",
        solution=("unchanged", 50),
        parts=("mean", "variance"),
        choices=(("unchanged", "larger", "smaller"), (1, 5, 50)),
        why="A constant times a score has mean 0, but R − b is now five to six times "
        "as large, and a variance grows with the square.",
        mistakes={
            "The mean is right. The factors R − b have become about five times as "
            "large, and a variance grows with their square.": ("unchanged", 5),
            "The mean is right, but each draw is now multiplied by about 2.3 instead "
            "of a number between −0.3 and 0.6. The noise cannot be the same.": (
                "unchanged",
                1,
            ),
            "The variance is right. What the baseline adds to the mean is 2 · E[ψ]: "
            "how large is the average score?": ("larger", 50),
            "A constant multiplies scores, and the average score is 0. Then look at "
            "the variance again: it grows with the square of R − b.": ("larger", 5),
        },
    ),
    Exercise(
        "1.3",
        solution=score_gradient,
        cases=((_PROBS, _ACTIONS, _REWARDS), (_PROBS, _ACTIONS[:1], _REWARDS[:1])),
        mistakes={
            "You left out −π: pushing one logit up must pull the others down.": {
                "(chosen - probs)": "chosen"
            },
            "That is the sum over samples. An expectation is estimated by the mean.": {
                ".mean(0)": ".sum(0)"
            },
            "You weight by π(a) again. Sampling did that already: ∇log π, not ∇π.": {
                "rewards[:, None]": "(rewards * probs[actions])[:, None]"
            },
            "No baseline is asked for. The mean of all samples contains each one's own "
            "reward, and shrinks the estimate.": {
                "rewards[:, None]": "(rewards - rewards.mean())[:, None]"
            },
            "That is the gradient with respect to the probabilities, 1/π(a) for the "
            "sampled arm. The question asks for the logits: one-hot − π.": {
                "(chosen - probs)": "chosen / probs"
            },
            "The sign is that of a loss. The question asks for the ascent direction.": {
                "(rewards[": "-(rewards["
            },
        },
    ),
    Exercise(
        "1.4",
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
            "Do not add ratios: add log-ratios, then take exp.": {
                " * mask).sum(-1).exp()": ".exp() * mask).sum(-1)"
            },
            "Nothing limits the exact weight. A cap makes it less noisy, and biased.": {
                ".exp()": ".exp().clamp(max=2)"
            },
            "You clip each token's ratio, which PPO does. The exact weight has no "
            "clip.": {"(logp - old_logp)": "(logp - old_logp).clamp(-0.2, 0.2)"},
            "You keep tokens only up to the first hole. Leave the hole out, but count "
            "the tokens after it.": {"* mask": "* mask.cumprod(-1)"},
        },
    ),
    Exercise(
        "1.5",
        solution="3b",
        lines=10,
        why="`backward` adds to the gradients that are there. They must be cleared in "
        "every step, so `zero_grad` belongs inside the loop.",
        mistakes={
            "The reason is right: `backward` adds to the gradients that are there, as "
            "it should. Which line ought to have cleared them first?": "8b",
            "The reason is right, but the optimiser takes what it is given. Which "
            "line ought to have cleared the gradients?": "10b",
            "Line 9 is right, and clipping comes before the step, as it should. It "
            "limits the norm of the gradients. Why are they so large?": "9c",
            "Line 7 is right: on fresh data the ratio is 1, and A log π is "
            "enough.": "7d",
            "Line 5 is right: `seed=step` draws other problems in every step.": "5a",
            "Line 2 is right: one optimiser for the whole run, or it forgets its "
            "moments. But the reason is the right one.": "2b",
            "The line is right. Clipping is not the reason: what is left in the "
            "gradients when the next step begins?": "3c",
        },
    ),
)


def _strided(rewards, G):
    """The groups taken for columns."""
    R = rewards.view(G, -1)
    return (R - (R.sum(0) - R) / (G - 1)).view(-1)


_FRESH = batch()[:1] + batch()[2:]

TYPED = (
    Exercise(
        "01.leave_one_out",
        solution=leave_one_out,
        cases=(
            (torch.tensor([1.0, 0, 0, 1, 1, 0]), 3),
            (torch.tensor([0.5, -1, 2, 0]), 2),
            (torch.tensor([1.0, 0, 0, 1, 0, 0, 0, 0]), 4),
        ),
        mistakes={
            "That is one mean for the whole batch. Each answer is compared with the "
            "others to its own prompt, without itself.": {"(R - b)": "(R - R.mean())"},
            "That baseline contains the answer's own reward, so every advantage is too "
            "small by (G − 1)/G. Take the mean of the others.": {
                "(R.sum(-1, keepdim=True) - R) / (G - 1)": "R.mean(-1, keepdim=True)"
            },
            "You divide the sum of the others by G, but there are G − 1 of them.": {
                "(G - 1)": "G"
            },
            "You compare with the answers to all prompts. Each prompt is a group of "
            "its own: one row of `rewards.view(-1, G)`.": {
                "R = rewards.view(-1, G)": "R, G = rewards.view(1, -1), len(rewards)"
            },
            "The G answers to a prompt stand one after another, so a group is a row "
            "of `view(-1, G)`. You made it a column of `view(G, -1)`.": _strided,
            "The numbers are right, but the loss needs one for each answer, (B,). "
            "Flatten the rows.": {".view(-1)": ""},
            "Upside down: an answer that is better than the others has a positive "
            "advantage.": {"(R - b)": "(b - R)"},
            "That is the baseline. The advantage is the reward minus it.": {
                "(R - b)": "b"
            },
        },
    ),
    Exercise(
        "01.reinforce_loss",
        solution=reinforce_loss,
        gradient=True,
        cases=(_FRESH,),
        mistakes={
            **usual(reinforce_loss),
            "You take π in place of log π. Its gradient is π∇log π, which weights a "
            "token by π a second time: sampling did that already.": {
                "* logp)": "* logp.exp())"
            },
            "Where is the advantage? This makes every sampled token more likely, the "
            "wrong answers' as well.": {"* advantages[:, None] *": "*"},
        },
    ),
    Exercise(
        "01.surrogate_loss",
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
