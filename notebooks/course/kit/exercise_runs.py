"""The runs of the exercises "find the bug in this run": one right, one broken.

The chapters print the broken version; reading on here gives the answer away.
"""

import copy

import torch

from refimpl import ALGORITHMS, History, Scored, log_probs, sample
from refimpl.models import build
from refimpl.tasks import Arithmetic, make_tokenizer


def reinforce(model, tokenizer, rollouts: int = 24, broken: bool = False) -> History:
    """Run chapter 01's loop; the `broken` version clears its gradients only once."""
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
        advantages = method.advantages(Scored(rewards, rollout.group))
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


def answering(steps: int = 100, broken: bool = False) -> History:
    """Supervised steps before RL: an untrained policy learns to answer, and to stop.

    Sums of two terms, written out. Padding is EOS; the `broken` one leaves all of it
    out of the loss. Every ten steps 32 answers of at most 24 tokens are sampled:
    columns loss (nats per token), reward, length (tokens), cut_off (share).
    """
    world, tokenizer = Arithmetic(max_terms=2), make_tokenizer()
    pad = eos = tokenizer.eos_token_id
    policy = build("tiny", tokenizer).train()
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0
    )
    history = History("supervised")
    for step in range(steps):
        prompts = [p["prompt"] for p in world.sample(64, step)]
        texts = [prompt + world.careful(prompt) for prompt in prompts]
        rows = [torch.tensor([*ids, eos]) for ids in tokenizer(texts)["input_ids"]]
        ids = torch.nn.utils.rnn.pad_sequence(rows, True, padding_value=pad)
        place = torch.arange(ids.shape[1])
        answer = place >= torch.tensor([[len(prompt)] for prompt in prompts])
        length = torch.tensor([[len(row)] for row in rows])
        mask = answer & ((ids != pad) if broken else (place < length))
        logits = policy(ids[:, :-1], use_cache=False).logits
        logp = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        loss = -(logp * mask[:, 1:]).sum() / mask.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 10 == 0:
            row = {"loss": loss.item(), **_answers(policy, tokenizer, world, step)}
            history.rows.append(row)
    return history


def _answers(policy, tokenizer, world: Arithmetic, step: int) -> dict[str, float]:
    """Measure 32 sampled answers."""
    problems = world.sample(32, 1000 + step)
    prompts, answers = ([p[name] for p in problems] for name in ("prompt", "answer"))
    rollout = sample(policy, tokenizer, prompts, max_new_tokens=24, seed=step)
    rewards = world.reward(None, rollout.texts(tokenizer), answer=answers)
    return {
        "reward": sum(rewards) / len(rewards),
        "length": rollout.length.mean().item(),
        "cut_off": rollout.truncated.float().mean().item(),
    }


def two_ranks(model, tokenizer, groups: int = 64, broken: bool = False) -> dict:
    """Chapter 14: groups of eight, four answers sampled on each of two ranks.

    `distinct`: different answers in each group; `dead`: share of groups in which all
    rewards are equal. The `broken` ranks draw with one seed.
    """
    world = Arithmetic()
    problems = world.sample(groups, 0)
    prompts = [p["prompt"] for p in problems]
    seeds = (0, 0) if broken else (0, 1)
    halves = [
        sample(model, tokenizer, prompts, group_size=4, seed=seed).texts(tokenizer)
        for seed in seeds
    ]
    distinct, dead = [], 0
    for n, problem in enumerate(problems):
        texts = [text for half in halves for text in half[4 * n : 4 * n + 4]]
        rewards = world.reward(None, texts, answer=[problem["answer"]] * 8)
        distinct.append(len(set(texts)))
        dead += len(set(rewards)) == 1
    return {"distinct": distinct, "dead": dead / groups}
