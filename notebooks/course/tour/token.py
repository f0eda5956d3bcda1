"""The tour's example: four answers to one question, and the first token of one.

Every number comes from the library: advantages, weights and losses are the ones that
train, and a token's push is −∂loss/∂log π, by autograd.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from course.kit import methods
from refimpl import normalisers
from refimpl.advantages import Scored, token_rewards
from refimpl.algorithms import ALGORITHMS, Algorithm

PROMPT = "3+9+4="
ANSWERS = ("3+9=12;12+4=16;#16", "#14", "#16", "?8+2=10;4+4=8;#12")
REWARDS = (1.0, 0.0, 1.0, 0.0)
"""Of the four answers, in points."""
LENGTHS = tuple(len(answer) + 1 for answer in ANSWERS)
"""In tokens: the characters, and the one that ends the answer."""
SAMPLED, NOW = 0.25, 0.325
"""The probability of the first token of the first answer, then and some updates later.
"""
LIMIT = 48
"""Tokens that an answer may have, Dr. GRPO's divisor."""
WITHOUT_RATIO = ("reinforce", "dro")
"""Methods that push on log π itself."""


class Factors(NamedTuple):
    """What a method makes of one token: push = weight · gate · ratio · advantage."""

    weight: float
    gate: float
    ratio: float
    advantage: float
    push: float


def scored(mask: Tensor, rewards: Sequence[float] = REWARDS, critic: bool = False):
    """Return the four rewards, as one group; with a critic, one that expects ½."""
    paid, group = torch.tensor(rewards).double(), torch.zeros(4).long()
    if critic:
        return Scored(token_rewards(paid, mask), group, mask, 0.5 * mask, lam=1.0)
    return Scored(paid, group, mask)


def advantages(name: str, rewards: Sequence[float] = REWARDS) -> list[float]:
    """Return each answer's advantage, as a method without a critic computes it."""
    return ALGORITHMS[name].advantages(scored(rows(LENGTHS), rewards)).tolist()


def rows(lengths: Sequence[int]) -> Float[Tensor, "B T"]:
    """Return the mask of answers of these lengths."""
    mask = torch.zeros(len(lengths), max(lengths)).double()
    for row, length in zip(mask, lengths):
        row[:length] = 1
    return mask


def weights(name: str, lengths: Sequence[int] = LENGTHS) -> Float[Tensor, "B T"]:
    mask = rows(lengths)
    known = {"group": torch.zeros(len(mask)).long(), "max_length": LIMIT}
    return normalisers.apply(ALGORITHMS[name].normaliser, mask, **known)


def factors(method: Algorithm, now: float = NOW) -> Factors:
    """Return our token's factors once its probability is `now`; no other has moved.

    The gate is what the other three leave of the push. So it contains the pull back
    to the old policy that some methods add to their objective.
    """
    mask, weight = rows(LENGTHS), weights(method.name)
    old = torch.full_like(mask, SAMPLED).log()
    logp = old.clone()
    logp[0, 0] = math.log(now)
    logp.requires_grad_()
    credit = method.advantages(scored(mask, critic=method.critic))
    loss = method.policy_loss(logp, old, credit, mask, weight).loss
    push = -torch.autograd.grad(loss, logp)[0][0, 0].item()
    ratio = now / SAMPLED
    if method.name in WITHOUT_RATIO:
        ratio = 1.0
    elif method.one_ratio and method.name != "vespo":  # which takes the product
        ratio = ratio ** (1 / LENGTHS[0])
    w, a = weight[0, 0].item(), credit[0].flatten()[0].item()
    return Factors(w, push / (w * ratio * a) + 0.0, ratio, a, push + 0.0)


HEADS = ("method", "made from", "weight", "gate", "ratio", "advantage", "push")


def table() -> list[list[str]]:
    """Return a row for every method of the registry; its push is in thousandths."""
    return [row(method) for method in ALGORITHMS.values()]


def row(method: Algorithm) -> list[str]:
    made, chapter = factors(method), methods.of(method.name).chapter
    title = f"[{method.title}]({chapter}.ipynb)" if chapter else method.title
    parent = ALGORITHMS[method.parent].title if method.parent else ""
    weight = f"1/{1 / made.weight:.0f}"
    numbers = (f"{x:.3g}" for x in (made.gate, made.ratio, made.advantage))
    return [title, parent, weight, *numbers, f"{1000 * made.push:.1f}"]


def chance(model, tokenizer, text: str = ANSWERS[0][0]) -> float:
    """Return the probability that the model begins its answer with this token."""
    ids = torch.tensor([tokenizer.encode(PROMPT)])
    with torch.no_grad():
        odds = model(ids).logits[0, -1].double().softmax(-1)
    (token,) = tokenizer.encode(text)
    return odds[token].item()
