"""Exercises of chapter 01: score function, baselines, a bug.

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


def leave_one_out(rewards: Tensor, G: int) -> Tensor:
    """R_i minus the mean reward of the other G − 1 answers to the same prompt."""
    R = rewards.view(-1, G)
    b = (R.sum(-1, keepdim=True) - R) / (G - 1)
    return (R - b).view(-1)


def reinforce_loss(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """−A log π, averaged over a response's tokens, then over responses."""
    w = mask / (len(mask) * mask.sum(1, keepdim=True))
    return -(w * advantages[:, None] * logp).sum()


_PROBS = torch.tensor([0.5, 0.3, 0.2])
_ACTIONS = torch.tensor([0, 2, 2, 1])
_REWARDS = torch.tensor([1.0, 0.0, 2.0, -1.0])


EXERCISES = (
    Exercise(
        "1.1",
        solution="guess",
        choices=("careful", "guess", "ramble"),
        why="The others' logits rise in proportion to their probabilities, so 'guess' "
        "gains most.",
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
            "That is one number, but each logit has its own slope. Take the mean over "
            "the samples alone, dim 0.": {".mean(0)": ".mean()"},
            "You weight by π(a) again. Sampling did that already: ∇log π, not ∇π.": {
                "rewards[:, None]": "(rewards * probs[actions])[:, None]"
            },
            "Without the number of classes, `one_hot` makes as many columns as the "
            "largest action needs: give it len(probs).": {", len(probs)": ""},
            "You divide by the number of logits. Divide by the number of samples.": {
                ".mean(0)": ".sum(0) / len(probs)"
            },
            "That is one row per sample. Take the mean over the samples, dim 0.": {
                ".mean(0)": ""
            },
            "You move only the logit of the sampled arm. The others move as well, by "
            "−π each.": {"(chosen - probs)": "(chosen * (1 - probs))"},
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
    Exercise(
        "1.5",
        solution="hacking",
        why="The policy learns to get the reward that we compute, so a reward that "
        "rises alone pays for something that we did not mean.",
        choices=("hacking", "too few rollouts", "a wrong sign"),
        mistakes={
            "With too few rollouts the reward would not have risen either. Here it "
            "rises, and what we meant falls.": "too few rollouts",
            "With a wrong sign the reward itself would fall. Here it rises, and what "
            "we meant falls.": "a wrong sign",
        },
    ),
    Exercise(
        "1.6",
        solution=0.7,
        why="The ratio compares two probabilities of the same token, so both must be "
        "taken from the distribution that was sampled.",
        choices=(0.7, 1.0, 1.4),
        mistakes={
            "That is another distribution than the one that was sampled, so the ratio "
            "is not 1 before any update.": 1.0,
            "Sampling at 0.7 sharpened the distribution. Log-probs at 1.4 flatten it "
            "instead of following.": 1.4,
        },
    ),
    Exercise(
        "1.7",
        solution="the results by heart",
        why="SFT imitates what it is shown. What is too hard to work out can still be "
        "learned by heart.",
        choices=("to add", "the results by heart", "to be careful"),
        mistakes={
            "It cannot add five numbers within one token, and a demonstration shows "
            "it nothing but the result.": "to add",
            "No demonstration was careful, and SFT imitates what it is shown. GRPO "
            "found the careful habit, because it samples for itself.": "to be careful",
        },
    ),
)


def _strided(rewards, G):
    """The groups taken for columns."""
    R = rewards.view(G, -1)
    return (R - (R.sum(0) - R) / (G - 1)).view(-1)


def _turned(rewards, G):
    """The groups' number and size exchanged, and the rest as it should be."""
    R = rewards.view(G, -1)
    return (R - (R.sum(-1, keepdim=True) - R) / (G - 1)).view(-1)


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
            "its own: one row of `rewards.view(-1, G)`.": [
                lambda rewards, G: leave_one_out(rewards, len(rewards)),
                lambda rewards, G: rewards - (rewards.sum() - rewards) / (G - 1),
            ],
            "The G answers to a prompt stand one after another, so a group is a row "
            "of `view(-1, G)`. You took `view(G, -1)`.": [_strided, _turned],
            "Put the difference in brackets: the sum of the others is Σ R − R_i, and "
            "all of it is divided by G − 1.": {
                "(R.sum(-1, keepdim=True) - R) / (G - 1)": (
                    "R.sum(-1, keepdim=True) - R / (G - 1)"
                )
            },
            "The sum contains the answer's own reward. Take it out before you divide "
            "by G − 1.": {
                "(R.sum(-1, keepdim=True) - R) / (G - 1)": (
                    "R.sum(-1, keepdim=True) / (G - 1)"
                )
            },
            "The numbers are right, but the loss needs one for each answer, (B,). "
            "Flatten the rows.": {".view(-1)": ""},
            "Upside down: an answer that is better than the others has a positive "
            "advantage.": {"(R - b)": "(b - R)"},
            "That is the baseline. The advantage is the reward minus it.": {
                "(R - b)": "b"
            },
            "You divide by the std as well, as GRPO does (chapter 03). Here the "
            "advantage is the difference alone.": {
                "(R - b)": "((R - b) / (R.std(-1, keepdim=True) + 1e-6))"
            },
            "That is GRPO's advantage (chapter 03), with the mean of all and the std. "
            "Here it is the reward minus the mean of the others.": {
                "(R - b)": "((R - R.mean(-1, keepdim=True))"
                " / (R.std(-1, keepdim=True) + 1e-6))"
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
            "(B, 1) times (B,) is (B, B): every advantage meets every response. Keep "
            "the advantages (B,) where the responses have one number each.": (
                lambda logp, advantages, mask: (
                    -(advantages[:, None] * (logp * mask).sum(-1) / mask.sum(-1)).mean()
                )
            ),
            "You divide twice, by all tokens and by the number of responses.": (
                lambda logp, advantages, mask: (
                    -(advantages * (logp * mask).sum(-1) / mask.sum()).mean()
                )
            ),
            "Where is the advantage? This makes every sampled token more likely, the "
            "wrong answers' as well.": {"* advantages[:, None] *": "*"},
        },
    ),
)
