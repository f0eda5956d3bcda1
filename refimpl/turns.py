"""Credit below the response: advantages that differ between the turns of one answer.

A turn is a run of ones in the mask: what the policy writes between two observations.
Both estimators add ω times a part of their own to the advantage of the whole response,
so ω = 0 is GRPO's (`std`) or Dr. GRPO's. They are handed to a method:

    method = replace(ALGORITHMS["grpo"], advantages=rl.turns.gigpo)
    rl.train(method, task=rl.tasks.Calculator(), config=rl.TrainConfig(gamma=0.95))

`seen` computes what they need from a rollout: the state before each turn, and its
score by the task's own `progress`.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl.advantages import (
    Scored,
    group_centred,
    group_relative,
    group_size,
    group_sum,
    needed,
    token_rewards,
)
from refimpl.rollout import Rollout, turn_index


def gigpo(scored: Scored, omega: float = 1.0, std: bool = True) -> Float[Tensor, "B T"]:
    """Â of turn k = A^E + ω · A^S_k. GiGPO (2505.10978), Eq. 3 and 5–8.

        A^E    the group's advantage of the whole response
        R_k    Σ_{j≥k} γ^{j−k} r_j, the return from turn k on
        A^S_k  R_k compared with that of all turns, of all responses to the same
               prompt, that began in the same state; 0 if there is no other

    `std`: both are divided by their group's std. The authors' defaults are ω = 1 and
    γ = 0.95. With one reward at the end, no turn of an answer that failed has A^S > 0:
    a first turn that is right is blamed with the rest.
    """
    relative = group_relative if std else group_centred
    states, to_go = needed(scored, "states"), returns(scored)
    there = states >= 0
    # Equal states of different prompts are not compared.
    prompt = scored.group[:, None].expand_as(states)
    pairs = torch.stack([prompt[there], states[there]], -1)
    anchor = pairs.unique(dim=0, return_inverse=True)[1]
    several, steps = group_size(anchor) > 1, torch.zeros_like(to_go[there])
    steps[several] = relative(Scored(to_go[there][several], anchor[several]))
    step = torch.zeros_like(to_go).masked_scatter(there, steps)
    return by_token(scored, relative(scored)[:, None] + omega * step)


def state_differences(
    scored: Scored, omega: float = 1.0, std: bool = True
) -> Float[Tensor, "B T"]:
    """Â of turn k = A^E + ω · (c_k − its mean over all turns of the group).

        d_k = Φ_k − Φ_{k−1}            Φ: the score of the state after turn k
        c_j = Σ_{k≥j} d_k γ^{k−j} / Σ_{l<k} γ^l

    A change of score is shared by its turn and, with weights γ, those before it: the
    sum of c is Φ at the end minus Φ at the start, so that staying in a good state earns
    nothing. γ = 0 gives c = d. The shares are those of a proposal to prime-rl (#3282);
    centring c and adding it to A^E is ours.
    """
    relative = group_relative if std else group_centred
    scores, turns = needed(scored, "state_scores"), turn_index(needed(scored, "mask"))
    d = scores.diff(dim=-1)
    k = torch.arange(d.shape[1], device=d.device)
    # shares[j, k]: turn j's share of the change of score that turn k made.
    apart = (k - k[:, None]).clamp(min=0)
    shares = (torch.full_like(d[:1, :1], scored.gamma) ** apart).triu()
    shares = shares / shares.sum(0)
    there = (k <= turns.amax(-1, keepdim=True)).to(d)
    c = (d * there) @ shares.T * there
    total, count = (group_sum(x.sum(-1), scored.group) for x in (c, there))
    centred = (c - (total / count.clamp(min=1))[:, None]) * there
    return by_token(scored, relative(scored)[:, None] + omega * centred)


def returns(scored: Scored) -> Float[Tensor, "B n"]:
    """Σ_{j≥k} γ^{j−k} r_j for each turn k; r_j sums the rewards of the turn's tokens.

    A reward per response is that of its last turn.
    """
    mask, rewards = needed(scored, "mask"), scored.rewards.to(scored.total)
    if rewards.ndim == 1:
        rewards = token_rewards(rewards, mask)
    turns = turn_index(mask)
    to_go = rewards.new_zeros(len(mask), max(1, int(turns.max()) + 1))
    to_go.scatter_add_(1, turns.clamp(min=0), rewards.where(turns >= 0, 0.0))
    for k in reversed(range(to_go.shape[1] - 1)):
        to_go[:, k] += scored.gamma * to_go[:, k + 1]
    return to_go


def by_token(scored: Scored, estimate: Float[Tensor, "B n"]) -> Float[Tensor, "B T"]:
    """Copy the number of each turn to its tokens; 0 elsewhere."""
    turns = turn_index(scored.mask)
    return estimate.gather(1, turns.clamp(min=0)) * (turns >= 0)


# What an estimator reads from a rollout with turns


def seen(task: Any, tokenizer, rollout: Rollout) -> dict[str, Tensor]:
    """Return `states`, and `state_scores` if the task has `progress`, for `Scored`.

    A state is all that was written before a turn, prompt included.
    """
    of_token, ids = rollout.turns.tolist(), rollout.ids.tolist()
    own = rollout.completion_ids()
    states: list[list[int]] = []
    scores: list[list[float]] = []
    known: dict[tuple, int] = {}
    for row, first in enumerate(rollout.prompt_length.tolist()):
        of_row, mine = of_token[row], own[row]
        turn_of = [turn for turn in of_row if turn >= 0]
        n = max(turn_of, default=-1) + 1
        before = [tuple(ids[row][: first + of_row.index(k)]) for k in range(n)]
        states.append([known.setdefault(text, len(known)) for text in before])
        if hasattr(task, "progress"):
            wrote = list(zip(mine, turn_of))[: len(mine) - (not rollout.truncated[row])]
            turns = ([i for i, of in wrote if of == k] for k in range(n))
            prompt, *texts = map(tokenizer.decode, [ids[row][:first], *turns])
            scores.append([task.progress(prompt, texts[:k]) for k in range(n + 1)])
    width = max(1, *map(len, states))
    rows = [row + [-1] * (width - len(row)) for row in states]
    found = {"states": rollout.group.new_tensor(rows)}
    if scores:  # after a response's end its score stays
        table = [row + row[-1:] * (width + 1 - len(row)) for row in scores]
        found["state_scores"] = rollout.logp.new_tensor(table)
    return found
