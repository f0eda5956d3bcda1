"""The runs of the exercises "find the bug in this run": one right, one broken.

The chapters print the broken one's lines; reading on here gives the answer away.
"""

import copy

import torch

from refimpl.algorithms import ALGORITHMS
from refimpl.history import History
from refimpl.rollout import log_probs, sample
from refimpl.tasks import Arithmetic


def reinforce(model, tokenizer, rollouts: int = 24, broken: bool = False) -> History:
    """Chapter 01's loop; the `broken` one clears its gradients only once."""
    world, method = Arithmetic(), ALGORITHMS["reinforce"]
    policy = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0
    )
    history = History("reinforce")
    for step in range(rollouts):
        problems = world.sample(4, step)
        prompts = [p["prompt"] for p in problems]
        rollout = sample(policy, tokenizer, prompts, group_size=8, seed=step)
        answers = [p["answer"] for p in problems for _ in range(8)]
        texts = rollout.texts(tokenizer)
        rewards = torch.tensor(world.reward(None, texts, answer=answers))
        advantages = method.advantages(rewards, rollout.group)
        logp, _ = log_probs(policy, rollout)
        loss = method.policy_loss(logp, rollout.logp, advantages, rollout.mask).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        if not broken:
            optimizer.zero_grad()
        row = {"reward": rewards.mean().item(), "grad_norm": norm.item()}
        history.rows.append(row)
    return history
