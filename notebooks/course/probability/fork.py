"""Which tokens a bound on the probability drops, in a run with a late sampler.

With one update per rollout a token's fate is decided before that update: the mask
compares the learner's probability with that of the sampler, which is some rollouts old.
"""

from typing import NamedTuple

import torch
from torch import Tensor

import refimpl as rl
from refimpl.algorithms.dppo_tv import change

FORK = 0
"""The place of the token that decides the habit."""
PLACES = 48
"""Answers have no more tokens."""


class Masked(NamedTuple):
    """What became of one run of DPPO-TV: numbers by rollout, tokens by place.

    `tokens` and `dropped` count tokens with Â > 0 and with Â < 0 at the first PLACES
    places of an answer, (2, PLACES). `share` is the dropped share of each rollout.
    """

    reward: list[float]
    fork: list[float]
    """mean probability of a digit as the first character, as the learner has it"""
    share: list[float]
    tokens: Tensor
    dropped: Tensor

    def at_fork(self, sign: int) -> float:
        """Of the dropped tokens with this sign of Â, the share at the fork."""
        row = self.dropped[0 if sign > 0 else 1]
        return (row[FORK] / row.sum()).item()


def run(delta: float, seed: int = 0, rollouts: int = 16, delay: int = 3) -> Masked:
    """Train at the setting of claim 17, and write down what is dropped."""
    config = rl.TrainConfig(
        rollouts=rollouts,
        prompts_per_rollout=32,
        minibatches=1,
        allow_on_policy=True,
        learning_rate=4e-4,
        sampler_delay=delay,
        dynamic_sampling=False,
        overlong_share=0.0,
        hyperparameters={"delta_low": delta, "delta_high": delta},
        seed=seed,
    )
    model, tokenizer, _ = rl.warm_start()
    this = rl.prepare("dppo_tv", config, model, tokenizer)
    digits = torch.tensor(tokenizer.convert_tokens_to_ids([*"0123456789"]))
    made = Masked([], [], [], *torch.zeros(2, 2, PLACES))
    for step in range(rollouts):
        batch, described = rl.collect(this, step)
        rollout = batch.rollout
        with torch.no_grad():
            logp = rl.log_probs(this.model, rollout)[0]
        advantages = batch.advantages.expand_as(logp)
        ones = torch.ones_like(logp)
        tokens = rl.Tokens(logp, rollout.logp, advantages, rollout.mask, ones)
        gone = 0
        for sign in (1, -1):
            pushed = (sign * advantages > 0) & rollout.mask.bool()
            dropped = pushed & (sign * change(tokens) > delta)
            for total, found in ((made.tokens, pushed), (made.dropped, dropped)):
                row = found.sum(0)[:PLACES]
                total[0 if sign > 0 else 1, : len(row)] += row
            gone += dropped.sum()
        made.reward.append(described["reward"])
        made.share.append((gone / rollout.mask.sum()).item())
        made.fork.append(first_is(this.model, rollout, digits))
        rl.updates(this, batch, step)
    return made


@torch.no_grad()
def first_is(model, rollout, ids: Tensor) -> float:
    """The mean probability that the first character is one of these."""
    logits = model(rollout.ids, use_cache=False).logits
    at = (rollout.prompt_length - 1)[:, None, None].expand(-1, 1, logits.shape[-1])
    return logits.gather(1, at)[:, 0].softmax(-1)[:, ids].sum(-1).mean().item()
