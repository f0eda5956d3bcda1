"""Exercises of chapter 03: groups, weights, K in two frameworks, a plot, a bug."""

import copy

import torch

from course.kit.exercise import Exercise
from refimpl import log_probs, sample
from refimpl.tasks import Arithmetic


def group_advantages(rewards: torch.Tensor) -> torch.Tensor:
    """Centre each row on its own mean, then divide by its own std (ddof = 1)."""
    centred = rewards - rewards.mean(-1, keepdim=True)
    return centred / (rewards.std(-1, keepdim=True) + 1e-6)


def dead_share(rewards: torch.Tensor) -> float:
    """A row whose smallest and largest reward agree has no advantage to give."""
    return (rewards.amin(-1) == rewards.amax(-1)).double().mean().item()


def from_verl(
    train_batch_size: int,
    n: int,
    ppo_mini_batch_size: int,
    ppo_epochs: int,
    per_device: int,
    processes: int,
) -> tuple[int, int, int]:
    """(gradient_accumulation_steps, steps_per_generation, num_iterations) of TRL.

    One pass of TRL holds per_device · processes completions. verl counts prompts, so a
    mini-batch has ppo_mini_batch_size · n of them and a rollout train_batch_size · n.
    """
    in_one_pass = per_device * processes
    accumulation = ppo_mini_batch_size * n // in_one_pass
    return accumulation, train_batch_size * n // in_one_pass, ppo_epochs


def token_weights(lengths: list[int]) -> tuple[list[float], list[float]]:
    """GRPO: 1/(B|o_i|), its own length. PPO: 1/Σ|o|, the same for every token."""
    rows, total = len(lengths), sum(lengths)
    return [1 / (rows * n) for n in lengths], [1 / total for _ in lengths]


def broken_run(model, tokenizer, grpo_loss, rollouts: int = 8) -> list[float]:
    """3.7: the reward of every rollout of the broken loop."""
    world, policy = Arithmetic(), copy.deepcopy(model)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-4)
    rewards = []
    for step in range(rollouts):
        problems = world.sample(16, seed=step)
        questions = [p["prompt"] for p in problems]
        rollout = sample(policy, tokenizer, questions, group_size=8, seed=step)
        truth = torch.tensor([p["answer"] for p in problems]).repeat(8)
        texts = rollout.texts(tokenizer)
        R = torch.tensor(world.reward(None, texts, answer=truth.tolist())).view(16, 8)
        A = (R - R.mean(1, keepdim=True)) / (R.std(1, keepdim=True) + 1e-6)
        for part in torch.arange(128).chunk(4):
            mini = rollout.rows(part)
            logp, _ = log_probs(policy, mini)
            loss = grpo_loss(logp, mini.logp, A.flatten()[part], mini.mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rewards.append(R.mean().item())
    return rewards


_MIXED = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
_EQUAL = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0]])
_SMALL = torch.tensor([[0.05, 0.0, 0.0, 0.05], [0.0, 0.05, 0.0, 0.0]])
_HALVES = torch.tensor(
    [[0.5, 0.5, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0, 0.5]]
)


def _centred(rewards: torch.Tensor) -> torch.Tensor:
    return rewards - rewards.mean(-1, keepdim=True)


def _std(rewards: torch.Tensor, correction: int = 1) -> torch.Tensor:
    return rewards.std(-1, correction=correction, keepdim=True)


def _row_by_row(rewards: torch.Tensor) -> torch.Tensor:
    rows = []
    for row in rewards:
        mean = sum(row) / len(row)
        variance = sum((x - mean) ** 2 for x in row) / (len(row) - 1)
        rows.append(torch.stack([(x - mean) / (variance**0.5 + 1e-6) for x in row]))
    return torch.stack(rows)


def _share(groups: torch.Tensor) -> float:
    return groups.double().mean().item()


def _weights_as_rows(lengths: list[int]) -> list[list[float]]:
    n = torch.tensor(lengths, dtype=torch.float64)
    each = 1 / n / len(n)
    return [each.tolist(), (torch.ones_like(n) / n.sum()).tolist()]


def _then(change):
    """`from_verl`, and what `change` makes of (accumulation, steps, iterations)."""
    return lambda *verl: change(*from_verl(*verl))


def _by_two_quotients(prompts, n, minibatch, epochs, per_device, processes):
    updates = prompts // minibatch  # in one epoch
    accumulation = minibatch * n / per_device / processes
    return accumulation, accumulation * updates, epochs


# What one may read off the plot of 3.6, where the jump is.
_NEAR_THE_CLIP = [
    n / 1000 for n in (*range(750, 800, 10), 785, 795, 796, 805, *range(810, 860, 10))
]

EXERCISES = (
    Exercise(
        "3.1",
        minutes=10,
        solution=group_advantages,
        cases=((_MIXED,), (_EQUAL,), (_SMALL,)),
        also=(_row_by_row,),
        mistakes={
            "You compare with the mean of the batch: a prompt's baseline is its row.": (
                lambda rewards: (rewards - rewards.mean()) / (_std(rewards) + 1e-6)
            ),
            "Mean and std of the whole batch: use dim=-1, one row is one prompt.": (
                lambda rewards: (rewards - rewards.mean()) / (rewards.std() + 1e-6)
            ),
            "You compare answers to different prompts: dim=0 runs down a column.": (
                lambda rewards: (rewards - rewards.mean(0)) / (rewards.std(0) + 1e-6)
            ),
            "The mean is the row's, the std is the batch's: use the row's for both.": (
                lambda rewards: _centred(rewards) / (rewards.std() + 1e-6)
            ),
            "You forgot the std: that is Dr. GRPO's advantage (the next chapter).": (
                _centred
            ),
            "That is the std with ddof = 0. Here, as in TRL and verl, ddof is 1.": (
                lambda rewards: _centred(rewards) / (_std(rewards, 0) + 1e-6)
            ),
            "A row of equal rewards gives 0/0 = NaN: add eps = 1e-6 to the std.": (
                lambda rewards: _centred(rewards) / _std(rewards)
            ),
            "eps belongs beside the std, not under the root: small rewards feel it.": (
                lambda rewards: _centred(rewards) / (_std(rewards) ** 2 + 1e-6).sqrt()
            ),
            "You divide by the variance: Â must not depend on the rewards' unit.": (
                lambda rewards: _centred(rewards) / (_std(rewards) ** 2 + 1e-6)
            ),
            "You left out your own reward (leave-one-out) and then took the std.": (
                lambda rewards: (
                    group_advantages(rewards)
                    * (rewards.shape[-1] / (rewards.shape[-1] - 1))
                )
            ),
        },
    ),
    Exercise(
        "3.2",
        minutes=5,
        solution=dead_share,
        cases=((_HALVES,), (_MIXED,), (_EQUAL,)),
        also=(lambda rewards: _share((rewards == rewards[:, :1]).all(-1)),),
        mistakes={
            "You count only the groups that are all wrong. All right is dead too.": (
                lambda rewards: _share((rewards == 0).all(-1))
            ),
            "You count only the groups that are all right. All wrong is dead too.": (
                lambda rewards: _share((rewards == 1).all(-1))
            ),
            "A group paid 0.5 throughout is dead too: compare rewards, not 0 and 1.": (
                lambda rewards: _share((rewards == 0).all(-1) | (rewards == 1).all(-1))
            ),
            "That is the share of live groups: 1 minus what is asked.": (
                lambda rewards: _share(rewards.std(-1) > 0)
            ),
            "That is the share of unpaid responses. Count groups: one row, one vote.": (
                lambda rewards: _share(rewards == 0)
            ),
            "That is how many groups are dead, not their share: divide by the rows.": (
                lambda rewards: (rewards.std(-1) == 0).sum().item()
            ),
        },
    ),
    Exercise(
        "3.3",
        minutes=5,
        solution=0.5,
        why="A dead group adds nothing to the sum, but its answers are counted in B, "
        "by which the mean over responses divides. Half dead: every live token weighs "
        "half.",
        mistakes={
            "The sum stays, but GRPO divides by B, dead answers included.": 1.0,
            "A dead group makes the others weaker, not stronger: B doubles.": 2.0,
            "Only the dead group's gradient is 0. The live group keeps its own.": 0.0,
            "B counts once: the gradient falls with the share of live groups.": 0.25,
            "Norms do not average as noise does: the sum is divided by B, not √B.": (
                0.5**0.5
            ),
        },
    ),
    Exercise(
        "3.4",
        minutes=15,
        solution=from_verl,
        cases=((32, 8, 8, 1, 8, 4), (64, 4, 16, 2, 2, 8), (128, 16, 32, 3, 16, 2)),
        also=(_by_two_quotients,),
        mistakes={
            "verl counts prompts and TRL completions: multiply both sizes by n.": (
                lambda prompts, n, *others: from_verl(prompts, 1, *others)
            ),
            "You left out the processes: each of them has a batch of its own.": (
                lambda *verl: from_verl(*verl[:-1], 1)
            ),
            "steps_per_generation counts backward passes, not optimiser steps.": (
                _then(lambda passes, steps, epochs: (passes, steps // passes, epochs))
            ),
            "The epochs are num_iterations already: do not count them twice.": (
                _then(lambda passes, steps, epochs: (passes, steps * epochs, epochs))
            ),
            "Epochs in the steps enlarge the rollout: they are num_iterations.": (
                _then(lambda passes, steps, epochs: (passes, steps * epochs, 1))
            ),
            "You swapped them: accumulation makes one update, the steps a rollout.": (
                _then(lambda passes, steps, epochs: (steps, passes, epochs))
            ),
        },
    ),
    Exercise(
        "3.5",
        minutes=10,
        solution=token_weights,
        cases=(([10, 2, 3, 30],), ([4, 4],), ([1, 7, 16],)),
        also=(_weights_as_rows,),
        mistakes={
            "You swapped them: GRPO looks at its own length, PPO at the batch's.": (
                lambda lengths: token_weights(lengths)[::-1]
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
    Exercise(
        "3.6",
        minutes=5,
        solution=0.8,
        why="Above 0.8 the advantage pushes down with r, more than a KL of β = 1 pulls "
        "up. At 0.8 the clip takes the advantage away, and the KL's pull is all that "
        "is left.",
        mistakes={
            "At r = 1 the KL pulls with 0 and the advantage pushes with −1: not yet.": (
                1.0
            ),
            "That is where the good token's push turns: you read the left panel.": 1.2,
            "There an unclipped push and the KL would balance. The clip comes first.": (
                0.618
            ),
            "At r = 0.5 the push is up already: follow the curve to its jump.": 0.5,
            **{
                f"{near} is the right place. The jump is at the clip's bound: which "
                "number is that exactly, with ε = 0.2?": near
                for near in _NEAR_THE_CLIP
            },
        },
    ),
    Exercise(
        "3.7",
        minutes=10,
        solution=4,
        why="`repeat` gives answer 1, 2, 3, …, 1, 2, 3, …; the responses stand in "
        "groups, so it must be `repeat_interleave`. The verifier compares with another "
        "prompt's sum.",
        mistakes={
            "Line 1 is right: sixteen new problems for every rollout.": 1,
            "Line 2 is right: one prompt per problem; `sample` makes the copies.": 2,
            "Line 3 is right: the 8 answers to a prompt come one below another.": 3,
            "Line 5 is right, if `truth` is: it compares one answer with one sum.": 5,
            "Line 6 is right: rows 0 to 7 answer the first prompt, and so on.": 6,
            "Line 7 is right: mean and std of each row, which is one group.": 7,
            "Line 8 is right: four mini-batches of four whole groups.": 8,
            "Line 9 is right: it takes the same rows as `A.flatten()[part]`.": 9,
            "Line 10 is right: the log-probs of the policy as it is now.": 10,
            "Line 11 is right: `mini.logp` is the sampler's, which is π_old.": 11,
            "Line 12 is right: clear, back-propagate, step. The norm's clip is left "
            "out, but the first reward is too low before any update.": 12,
        },
    ),
)
