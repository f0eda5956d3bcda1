"""Exercises of chapter 14: K in two engines, a port at r ≠ 1, ranks, old samplers."""

from collections.abc import Callable
from functools import wraps

import torch

from course.kit.exercise import Exercise, edited
from course.kit.usual import batch, from_the_left


def policy_loss(old_log_prob, log_prob, advantages, response_mask):
    """14.4: the coefficient gate · r · Â as a constant, times log π."""
    ratio = (log_prob - old_log_prob).exp().detach()
    gate = (1 - (ratio - 1).abs() / 0.5).clamp(min=0)
    objective = gate * ratio * advantages * log_prob
    return -(objective * response_mask).sum() / response_mask.sum()


def gradient_of(policy_loss: Callable) -> Callable:
    """∂ loss / ∂ log π of a ported loss, as a function of the loss's arguments."""

    @wraps(policy_loss)
    def gradient(old_log_prob, log_prob, advantages, response_mask):
        log_prob = log_prob.clone().requires_grad_()
        loss = policy_loss(old_log_prob, log_prob, advantages, response_mask)
        if loss is None or loss is ...:
            raise NotImplementedError
        return torch.autograd.grad(loss, log_prob)[0]

    return gradient


def _ported(edits: dict[str, str]) -> Callable:
    """The port with other text."""
    return gradient_of(edited(policy_loss, edits))


def rank_loss(objective, mask, tokens):
    """The sum of a rank's losses over the mean number of tokens per rank."""
    return -(objective * mask).sum() * len(tokens) / sum(tokens)


_HERE = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).double()
_HELD = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]).double()
_RANKS = (_HERE, _HELD, [4, 12]), (-_HERE, torch.ones(2, 3).double(), [2, 1, 6])

_NEW, _OLD, _A, _MASK = batch()
_PORT = _OLD, _NEW, _A[:, None].expand_as(_NEW), _MASK

TYPED = (
    Exercise(
        "14.rank_loss",
        solution=rank_loss,
        cases=_RANKS,
        mistakes={
            **from_the_left(rank_loss),
            "You divide by this rank's own tokens, as in the example.": (
                lambda o, m, t: -(o * m).sum() / m.sum()
            ),
            "DDP takes the mean of the ranks and not their sum: multiply by the number "
            "of ranks.": lambda o, m, t: -(o * m).sum() / sum(t),
            "DDP divides by the number of ranks already. Multiply by it instead.": (
                lambda o, m, t: -(o * m).sum() / sum(t) / len(t)
            ),
            "Padding counts: multiply by the mask.": (
                lambda o, m, t: -o.sum() * len(t) / sum(t)
            ),
            "That climbs: a loss is descended, so its sign is −.": (
                lambda o, m, t: (o * m).sum() * len(t) / sum(t)
            ),
        },
    ),
)

EXERCISES = (
    Exercise(
        "14.1",
        solution=10,
        why="Each token of the second rank is multiplied by 1/16, each of the first "
        "by 1/160.",
        mistakes={
            "That is a token of the first rank, as one of the second counts it.": 0.1,
            "That holds if both divide by the same number.": 1,
            "Both have four answers. Which number does each rank divide by?": 4,
        },
    ),
    Exercise(
        "14.2",
        solution=8,
        why="A rollout lasts for 16 micro-steps, and 4 of them make one optimiser "
        "step, so two passes take 2 · 16 / 4. The batch per device and the number "
        "of processes do not matter.",
        mistakes={
            "Those are the passes over a rollout. How many optimiser steps does one "
            "take?": 2,
            "That is one pass. There are two.": 4,
            "Those are micro-steps: four of them make one optimiser step.": 32,
            "Those are the micro-steps of one pass.": 16,
        },
    ),
    Exercise(
        "14.3",
        solution=12,
        why="There are 512 / 128 mini-batches, both counted in prompts, and three "
        "epochs. `rollout.n` does not matter, and a micro-batch is not an update.",
        mistakes={
            "Those are the epochs. How many mini-batches are in one?": 3,
            "That is one epoch. There are three.": 4,
            "verl counts mini-batches in prompts, like the batch: n cancels.": 192,
            "That is one epoch, and its mini-batches counted in answers. verl counts "
            "them in prompts.": 64,
        },
    ),
    Exercise(
        "14.4",
        solution=gradient_of(policy_loss),
        cases=(_PORT,),
        mistakes={
            "That is right at r = 1 only: the ratio is missing.": _ported(
                {"gate * ratio": "gate"}
            ),
            "The gradient also flows through the gate. Gate and ratio are constants; "
            "only log π has a gradient.": _ported(
                {".detach()": "", " * log_prob\n": "\n"}
            ),
            "That climbs: a loss is descended, so its sign is −.": _ported(
                {"-(obj": "(obj"}
            ),
            "That is REINFORCE with a ratio: the gate is missing.": _ported(
                {"gate * ratio": "ratio"}
            ),
            "The gate is 1 at r = 1 and falls from there, to 0 at |r − 1| = 0.5. "
            "Yours is 0 at r = 1.": _ported({"(1 - (ratio": "((ratio"}),
            "The gate must not go below 0.": _ported({".clamp(min=0)": ""}),
            "That fades on one side only.": _ported(
                {".abs() / 0.5).clamp(min=0)": " / 0.5).clamp(0, 1)"}
            ),
            "That averages each answer first; the question asks for the mean over "
            "tokens.": _ported(
                {"-(": "-((", ".sum()": ".sum(1)", "mask.sum(1)": "mask.sum(1)).mean()"}
            ),
            "You divide by the padding as well.": _ported(
                {".sum() / response_mask.sum()": ".mean()"}
            ),
            "Padding counts: multiply by the mask.": _ported({" * response_mask": ""}),
        },
    ),
    Exercise(
        "14.5",
        solution="4b",
        lines=10,
        why="Both ranks sample the same prompts with the same seed, so the second "
        "half of every group is a copy of the first. `seed=(step, rank)` repairs "
        "it.",
        mistakes={
            "The line is right. Look at what both ranks hand to `sample`.": "4a",
            "Here the ranks share every group, so they need the same prompts.": "3c",
            "Line 7 is right: the whole group's mean and std, then its own half.": "7a",
            "DDP divides by `ranks`, which is therefore multiplied here.": "9d",
        },
    ),
    Exercise(
        "14.6",
        solution=0.3,
        decimals=1,
        why="The accuracy rises from 0.44 to 0.74. The interval of the mean gain, "
        "0.17 to 0.44, shows how little five warm starts can tell about its size.",
        mistakes={
            "That is the median with weights. How much is it without them?": 0.7,
            "That is the median without weights.": 0.4,
            "That is GSPO's gain, whose two lines coincide.": 0.0,
            "That is SAPO's, in the last panel.": 0.1,
            "That is what is still lost with weights, or CISPO's gain.": 0.2,
            "That is what is lost without weights, against a sampler on time.": 0.5,
        },
    ),
)
