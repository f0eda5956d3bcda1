"""Exercises of chapter 03: a group, a dead group, a loss of 0, K, a bug.

`TYPED` are the two functions that the reader types.
"""

import copy

import torch

from course.kit.by_hand import answers
from course.kit.exercise import Exercise
from course.kit.usual import batch, usual
from refimpl import log_probs, sample
from refimpl.tasks import Arithmetic


def advantage(rewards: torch.Tensor, size: int) -> torch.Tensor:
    """Centre each row on its own mean, then divide by its own std (ddof = 1)."""
    R = rewards.view(-1, size)  # one row per prompt
    A = (R - R.mean(1, keepdim=True)) / (R.std(1, keepdim=True) + 1e-6)
    return A.flatten()


def grpo_loss(logp, old_logp, advantages, mask, epsilon=0.2):
    """PPO's clip with one advantage per response, and the mean per response."""
    A = advantages[:, None]  # the same for every token of a response
    r = (logp - old_logp).exp()
    clipped = r.clamp(1 - epsilon, 1 + epsilon)
    objective = torch.minimum(r * A, clipped * A)
    weight = mask / (len(mask) * mask.sum(1, keepdim=True))  # 1 / (B |o_i|)
    return -(weight * objective).sum()


def dead_share(rewards: torch.Tensor) -> float:
    """A row whose smallest and largest rewards agree gives no advantage."""
    return (rewards.amin(-1) == rewards.amax(-1)).double().mean().item()


def broken_run(model, tokenizer, grpo_loss, rollouts: int = 8) -> list[float]:
    """3.6: the reward of every rollout of the broken loop."""
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
_PAIRS = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.3, 1.0]])
_HALVES = torch.tensor(
    [[0.5, 0.5, 0.5], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0, 0.5]]
)
_MEAN_FIRST = torch.tensor([[0.5, 0.0, 1.0, 0.5], [1.0, 1.0, 1.0, 1.0]])
_CLOSE = torch.tensor([[0.50, 0.52], [0.0, 1.0], [0.0, 0.0], [0.500, 0.501]])


def _cases() -> tuple[tuple, ...]:
    logp, old_logp, rewards, mask = answers()
    three = logp.detach(), old_logp, advantage(rewards, 3), mask
    return three, batch(), (*batch(), 0.3)


TYPED = (
    Exercise(
        "03.advantage",
        solution=advantage,
        cases=(
            (_MIXED.flatten(), 4),
            (_EQUAL.flatten(), 4),
            (_SMALL.flatten(), 4),
            (_PAIRS.flatten(), 2),
        ),
        mistakes={
            "You return one row per prompt. The loss wants one number per response: "
            "flatten the rows.": {".flatten()": ""},
            "The answers to one prompt stand together: `view(-1, size)`, one row per "
            "prompt. `view(size, -1)` mixes prompts.": {
                "view(-1, size)": "view(-1, len(rewards) // size)"
            },
            "`view(size, -1)` mixes prompts, in its columns as well. Take "
            "`view(-1, size)` and dim 1: one row per prompt.": {
                "view(-1, size)": "view(size, -1)",
                "(1, keepdim=True)": "(0)",
            },
            "You divide by the std, but you do not subtract the row's mean.": {
                "(R - R.mean(1, keepdim=True))": "R"
            },
            "That is TRL's 1e-4. Here 1e-6 is added to the std.": {"1e-6": "1e-4"},
            "You compare with the mean of the batch. A prompt's baseline is the mean "
            "of its row.": {"R.mean(1, keepdim=True)": "R.mean()"},
            "Mean and std are the whole batch's. One row is one prompt: use dim 1.": {
                "mean(1, keepdim=True)": "mean()",
                "std(1, keepdim=True)": "std()",
            },
            "You compare answers to different prompts: dim 0 runs down a column.": {
                "mean(1, keepdim=True)": "mean(0)",
                "std(1, keepdim=True)": "std(0)",
            },
            "The mean is the row's, the std is the batch's. Use the row's for both.": {
                "std(1, keepdim=True)": "std()"
            },
            "The std is missing: that is Dr. GRPO's advantage (chapter 04).": {
                " / (R.std(1, keepdim=True) + 1e-6)": ""
            },
            "That is the std with ddof = 0. Here, as in TRL and verl, ddof is 1.": {
                "R.std(1, ": "R.std(1, correction=0, "
            },
            "A row of equal rewards gives 0/0 = NaN. Add 1e-6 to the std.": {
                " + 1e-6": ""
            },
            "Add 1e-6 to the std, not under the root, where it would distort small "
            "rewards.": {
                "R.std": "(R.var",
                "+ 1e-6)": "+ 1e-6).sqrt())",
            },
            "You divide by the variance. Then Â depends on the rewards' unit.": {
                "R.std": "R.var"
            },
            "Upside down: an answer that is better than its group has a positive "
            "advantage.": {
                "R - R.mean(1, keepdim=True)": "R.mean(1, keepdim=True) - R"
            },
            "You leave out the answer's own reward (leave-one-out). GRPO keeps it.": {
                "+ 1e-6)": "+ 1e-6) * (size / (size - 1))"
            },
        },
    ),
    Exercise(
        "03.grpo_loss",
        solution=grpo_loss,
        cases=_cases(),
        gradient=True,
        mistakes={
            **usual(grpo_loss),
            "That is one ratio for the whole response. GRPO has one for each token.": {
                "(logp - old_logp)": "((logp - old_logp) * mask).sum(1)[:, None]"
            },
            "The clipped ratio is multiplied by Â as well, before the min.": {
                "clipped * A)": "clipped)"
            },
            "You compare logp with itself, so every ratio is 1. π_old is `old_logp`.": {
                "- old_logp": "- logp.detach()"
            },
        },
    ),
)


def _share(groups: torch.Tensor) -> float:
    return groups.double().mean().item()


EXERCISES = (
    Exercise(
        "3.1",
        solution=-1.5,
        decimals=2,
        why="The mean is 0.75 and the std 0.5, so (0 − 0.75)/0.5. The wrong answer is "
        "now the rare one, and is pushed as hard as the only right one was before.",
        mistakes={
            "The wrong answer is below the mean of its group: the sign is minus.": 1.5,
            "You have subtracted the mean. Divide by the std, which is 0.5.": -0.75,
            "That was its advantage among three wrong answers. The mean has moved.": (
                -0.5
            ),
            "That is a right answer's advantage now. The question is about the wrong "
            "one.": 0.5,
            "That is with the std over G. The sample std divides by G − 1.": -1.73,
            "A reward of 0 is not an advantage of 0. Compare it with the mean.": 0.0,
            "That is the reward minus the mean of the others, as in chapter 01. GRPO "
            "subtracts the mean of all four, and divides by the std.": -1.0,
        },
    ),
    Exercise(
        "3.2",
        solution=0.5,
        why="A dead group adds nothing to the sum, but its answers are counted in B, "
        "by which the mean over responses divides. Half the answers are dead, so every "
        "live token weighs half.",
        mistakes={
            "The sum stays, but GRPO divides by B, dead answers included.": 1.0,
            "A dead group weakens the others, because B doubles.": 2.0,
            "Only the dead group's gradient is 0. The live group keeps its own.": 0.0,
            "The size is right. But a negative factor would turn the gradient "
            "round, and a dead group only weakens it.": -0.5,
            "B counts once: the gradient falls with the share of live groups.": 0.25,
            "Norms do not average as noise does: the sum is divided by B, not √B.": (
                0.5**0.5
            ),
        },
    ),
    Exercise(
        "3.3",
        solution=0.0,
        why="At r = 1 the mean over a response's tokens is its advantage, whatever its "
        "length, and the four advantages 1.5, −0.5, −0.5, −0.5 add up to 0.",
        mistakes={
            "That is minus the mean reward. The loss holds advantages, not rewards.": (
                -0.25
            ),
            "That is the mean reward. The loss holds advantages, not rewards.": 0.25,
            "That is the right answer alone. The three wrong ones push back.": -1.5,
            "That is the right answer's advantage alone. The three wrong ones push "
            "back, and the loss has a minus in front.": 1.5,
            "That is the right answer's part. The three wrong ones push back.": -0.375,
            "That is the right answer's part of the objective. The three wrong ones "
            "push back, and the loss has a minus in front.": 0.375,
            "That is the mean over all tokens. GRPO averages each response first, so "
            "its length drops out.": 1 / 6,
            "That is the mean over all tokens, and the objective's sign. GRPO averages "
            "each response first, so its length drops out.": -1 / 6,
            "You add all tokens up. GRPO averages each response first, so its length "
            "drops out.": 4.0,
            "You add all tokens up per response. GRPO takes the mean over its tokens, "
            "so the length drops out.": 1.0,
        },
    ),
    Exercise(
        "3.4",
        solution=dead_share,
        cases=((_HALVES,), (_MIXED,), (_EQUAL,), (_MEAN_FIRST,), (_CLOSE,)),
        mistakes={
            "You count only the groups that are all wrong. A group that is all right "
            "is dead too.": (lambda rewards: _share((rewards == 0).all(-1))),
            "You count only the groups that are all right. A group that is all wrong "
            "is dead too.": (lambda rewards: _share((rewards == 1).all(-1))),
            "A group with 0.5 throughout is dead too: compare rewards, not 0 and 1.": (
                lambda rewards: _share((rewards == 0).all(-1) | (rewards == 1).all(-1))
            ),
            "You compare answers to different questions. A group is a row: dim 1.": (
                lambda rewards: _share(rewards.std(0) == 0)
            ),
            "That is the share of live groups: 1 minus what is asked.": (
                lambda rewards: _share(rewards.std(-1) > 0)
            ),
            "That is the share of answers with reward 0. Count groups: one row, one "
            "vote.": lambda rewards: _share(rewards == 0),
            "That is how many groups are dead, not their share: divide by the rows.": (
                lambda rewards: (rewards.std(-1) == 0).sum().item()
            ),
            "You divide the dead groups by answers. Divide by the number of rows.": [
                lambda rewards: (rewards.std(-1) == 0).sum().item() / rewards.numel(),
                lambda rewards: (rewards.std(-1) == 0).sum().item() / rewards.shape[1],
            ],
            "A small spread still counts: rewards 0.50 and 0.52 give full-sized "
            "advantages, because they are divided by the std.": (
                lambda rewards: _share(rewards.std(-1) < 0.1)
            ),
            "You allow for a small difference. Rewards of 0.500 and 0.501 give "
            "full-sized advantages as well: a dead group's rewards are equal.": (
                lambda rewards: _share(rewards.amax(-1) - rewards.amin(-1) < 0.01)
            ),
            "That says of each group whether it is dead. The share is one number: the "
            "mean over the groups.": (
                lambda rewards: (rewards.amin(-1) == rewards.amax(-1)).double()
            ),
            "A mean that equals the first reward proves nothing, as 0.5, 0, 1, 0.5 "
            "shows.": (lambda rewards: _share(rewards.mean(-1) == rewards[:, 0])),
        },
    ),
    Exercise(
        "3.5",
        solution=(16, 15),
        parts=("updates", "updates in which a clip can act"),
        choices=((1, 15, 16, 512, 8192), (0, 1, 15, 16, 512)),
        why="8,192 / 512 = 16 updates. At the first of them the policy is π_old, so "
        "every ratio is 1. In the other fifteen the weights have moved.",
        mistakes={
            "At the first update nothing has moved yet: every ratio is 1.": (16, 16),
            "One pass over the rollout is not a single update: it takes a step for "
            "every mini-batch.": (1, 0),
            "One pass does not mean that the ratio stays at 1. The weights change "
            "after every mini-batch, and π_old does not.": (16, 0),
            "It is the other way round: the first update is the one without a clip.": (
                16,
                1,
            ),
            "The first update counts as well: it has a gradient, only no clip.": (
                15,
                15,
            ),
            "512 is the size of a mini-batch. How many of them make a rollout?": (
                512,
                512,
            ),
        },
    ),
    Exercise(
        "3.6",
        solution="4a",
        lines=12,
        why="`repeat` gives sum 1, 2, 3, …, 1, 2, 3, …, but the responses stand in "
        "groups, so it must be `repeat_interleave`. The verifier compares most answers "
        "with another question's sum.",
        mistakes={
            "Line 4 it is. But the groups are right: line 6 cuts the rewards as the "
            "answers stand. It is the sums that stand in another order.": "4b",
            "Line 4 it is, but π_old stays what it was at the rollout.": "4c",
            "Line 4 it is, but the mini-batches are right: 32 rows are four whole "
            "groups.": "4d",
            "The reason is right. Which line puts the sums into another order?": "5a",
            "The reason is right, but line 2 makes one prompt per problem, as it "
            "should. Which line prepares the sums?": "2a",
            "Line 3 is right: the 8 answers to a prompt come one below another.": "3b",
            "Line 6 is right: rows 0 to 7 answer the first prompt, and so on.": "6b",
            "Line 7 is right: mean and std of each row, which is one group.": "7b",
            "Line 8 is right: four mini-batches of four whole groups.": "8d",
            "Line 9 is right: it takes the same rows as `A.flatten()[part]`.": "9d",
            "Line 10 is right: the log-probs of the policy as it is now.": "10c",
            "Line 11 is right: `mini.logp` is the sampler's, which is π_old. And the "
            "reward is too low before any update.": "11c",
        },
    ),
    Exercise(
        "3.8",
        solution=1.3,
        why="A good token is stopped above 1 + ε. Below 1 − ε it has moved the wrong "
        "way, and the min lets the correction through.",
        choices=(0.7, 1.1, 1.3),
        mistakes={
            "There a good token has moved the wrong way, and the min lets the "
            "correction through.": 0.7,
            "That is within 1 ± 0.2, where the clip changes nothing.": 1.1,
        },
    ),
    Exercise(
        "3.9",
        solution="the reward",
        why="With λ = 1 the later predictions cancel, and what remains is the return "
        "minus V.",
        choices=("the critic", "the reward", "both alike"),
        mistakes={
            "That is λ = 0, which uses only the critic's next prediction. With λ = 1 "
            "the later predictions cancel.": "the critic",
            "With λ = 1 all later predictions of the critic cancel. What remains is "
            "the return minus V.": "both alike",
        },
    ),
    Exercise(
        "3.10",
        solution=2.6,
        why="The weight of a response is the product of its tokens' ratios, 1.1¹⁰ = "
        "2.59.",
        decimals=1,
        mistakes={
            "That is the ratio of one token, and the mean of all ten. A response's "
            "probability is a product.": 1.1,
            "You add the ratios up. A response's probability is a product, and so is "
            "its weight.": 11.0,
            "1 + 10 · 0.1 is only the beginning of 1.1¹⁰.": 2.0,
        },
    ),
)
