"""Exercises of chapter 03: group advantage, dead groups, first loss, K, weights."""

import torch

from course.exercises import Exercise
from course.exercises.solutions import chapter03 as solutions

_MIXED = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
_EQUAL = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0]])
_SMALL = torch.tensor([[0.05, 0.0, 0.0, 0.05], [0.0, 0.05, 0.0, 0.0]])
_HALVES = torch.tensor(
    [[0.5, 0.5, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0, 0.5]]
)


def _centred(rewards: torch.Tensor) -> torch.Tensor:
    return rewards - rewards.mean(-1, keepdim=True)


EXERCISES = (
    Exercise(
        "3.1",
        "The group advantage",
        difficulty=2,
        minutes=10,
        solution=solutions.group_advantages,
        cases=((_MIXED,), (_EQUAL,), (_SMALL,)),
        mistakes={
            "You compare with the mean of the batch: a prompt's baseline is its row.": (
                lambda rewards: (
                    (rewards - rewards.mean()) / (rewards.std(-1, keepdim=True) + 1e-6)
                )
            ),
            "Mean and std of the whole batch: use dim=-1, one row is one prompt.": (
                lambda rewards: (rewards - rewards.mean()) / (rewards.std() + 1e-6)
            ),
            "The mean is the row's, the std is the batch's: use the row's for both.": (
                lambda rewards: _centred(rewards) / (rewards.std() + 1e-6)
            ),
            "You forgot the std: that is Dr. GRPO's advantage (the next chapter).": (
                _centred
            ),
            "That is the std with ddof = 0. Here, as in TRL and verl, ddof is 1.": (
                lambda rewards: (
                    _centred(rewards)
                    / (rewards.std(-1, correction=0, keepdim=True) + 1e-6)
                )
            ),
            "A row of equal rewards gives 0/0 = NaN: add eps = 1e-6 to the std.": (
                lambda rewards: _centred(rewards) / rewards.std(-1, keepdim=True)
            ),
            "eps belongs beside the std, not under the root: small rewards feel it.": (
                lambda rewards: (
                    _centred(rewards) / (rewards.var(-1, keepdim=True) + 1e-6).sqrt()
                )
            ),
            "You divide by the variance: Â must not depend on the rewards' unit.": (
                lambda rewards: (
                    _centred(rewards) / (rewards.var(-1, keepdim=True) + 1e-6)
                )
            ),
            "You left out your own reward (leave-one-out) and then took the std.": (
                lambda rewards: (
                    _centred(rewards)
                    * rewards.shape[-1]
                    / (rewards.shape[-1] - 1)
                    / (rewards.std(-1, keepdim=True) + 1e-6)
                )
            ),
        },
    ),
    Exercise(
        "3.2",
        "Dead groups",
        difficulty=2,
        minutes=5,
        solution=solutions.dead_share,
        cases=((_HALVES,), (_MIXED,), (_EQUAL,)),
        mistakes={
            "You count only the groups that are all wrong. All right is dead too.": (
                lambda rewards: (rewards == 0).all(-1).double().mean().item()
            ),
            "You count only the groups that are all right. All wrong is dead too.": (
                lambda rewards: (rewards == 1).all(-1).double().mean().item()
            ),
            "A group paid 0.5 throughout is dead too: compare rewards, not 0 and 1.": (
                lambda rewards: (
                    ((rewards == 0).all(-1) | (rewards == 1).all(-1))
                    .double()
                    .mean()
                    .item()
                )
            ),
            "That is the share of live groups: 1 minus what is asked.": (
                lambda rewards: (rewards.std(-1) > 0).double().mean().item()
            ),
            "That is the share of unpaid responses. Count groups: one row, one vote.": (
                lambda rewards: (rewards == 0).double().mean().item()
            ),
            "That is how many groups are dead, not their share: divide by the rows.": (
                lambda rewards: (rewards.std(-1) == 0).sum().item()
            ),
        },
    ),
    Exercise(
        "3.3",
        "The first loss",
        difficulty=2,
        minutes=5,
        solution=solutions.FIRST_LOSS,
        mistakes={
            "Rewards enter only through Â, and Â adds up to 0 in each group.": -0.34,
            "The objective is not the reward: the mean reward was subtracted.": 0.34,
            "Each ratio is 1, but it multiplies an Â, and those cancel.": -1.0,
            "Each ratio is 1, but it multiplies an Â, and those cancel out.": 1.0,
            "ε is a bound on the ratio. At r = 1 no clip is active.": -0.2,
            "0.66 is 1 minus the mean; only Â enters, and its sum is 0.": 0.66,
        },
    ),
    Exercise(
        "3.4",
        "How many updates?",
        difficulty=1,
        minutes=5,
        solution=solutions.updates_per_rollout,
        cases=((16, 8, 32, 1), (64, 8, 128, 2), (32, 4, 128, 1), (8, 16, 32, 3)),
        mistakes={
            "You left out the epochs: each pass over the rollout updates again.": (
                lambda prompts, size, minibatch, epochs: prompts * size // minibatch
            ),
            "Epochs alone are not K: each mini-batch is an update of its own.": (
                lambda prompts, size, minibatch, epochs: epochs
            ),
            "A mini-batch is counted in responses: a prompt has group_size of them.": (
                lambda prompts, size, minibatch, epochs: prompts // minibatch * epochs
            ),
            "Mini-batches and epochs multiply; you added them.": (
                lambda prompts, size, minibatch, epochs: (
                    prompts * size // minibatch + epochs
                )
            ),
            "That is the size of a mini-batch in prompts, not how many there are.": (
                lambda prompts, size, minibatch, epochs: minibatch // size * epochs
            ),
        },
    ),
    Exercise(
        "3.5",
        "The weight of a token",
        difficulty=2,
        minutes=10,
        solution=solutions.token_weights,
        cases=(([10, 2, 3, 30],), ([4, 4],), ([1, 7, 16],)),
        mistakes={
            "You swapped them: GRPO looks at its own length, PPO at the batch's.": (
                lambda lengths: solutions.token_weights(lengths)[::-1]
            ),
            "GRPO's mean over responses is missing: divide by their number as well.": (
                lambda lengths: (
                    [1 / n for n in lengths],
                    [1 / sum(lengths) for _ in lengths],
                )
            ),
            "That is the weight of the whole response. A token's is 1/|o| of it.": (
                lambda lengths: (
                    [1 / len(lengths) for _ in lengths],
                    [n / sum(lengths) for n in lengths],
                )
            ),
            "You divide by the longest response: that is padding, not text.": (
                lambda lengths: (
                    [1 / (len(lengths) * max(lengths)) for _ in lengths],
                    [1 / sum(lengths) for _ in lengths],
                )
            ),
            "PPO's mean runs over all tokens of the batch: no 1/B, no |o|.": (
                lambda lengths: (
                    [1 / (len(lengths) * n) for n in lengths],
                    [1 / (len(lengths) * sum(lengths)) for _ in lengths],
                )
            ),
        },
    ),
)
