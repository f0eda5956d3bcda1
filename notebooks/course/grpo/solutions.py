"""Solutions to the exercises of chapter 03."""

import copy

import torch

from refimpl import log_probs, sample
from refimpl.tasks import Arithmetic

HALVED = 0.5
"""3.3: a dead group adds nothing to the sum, but its answers are counted in B, by which
the mean over responses divides. Half dead: every live token weighs half."""

SIGN_CHANGES_AT = 0.8
"""3.6: above 0.8 the advantage pushes down with r, more than a KL of β = 1 pulls up.
At 0.8 the clip takes the advantage away, and the KL's pull is all that is left."""

BROKEN_LINE = 4
"""3.7: `repeat` gives answer 1, 2, 3, …, 1, 2, 3, …; the responses stand in groups, so
it must be `repeat_interleave`. The verifier compares with another prompt's sum."""


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
