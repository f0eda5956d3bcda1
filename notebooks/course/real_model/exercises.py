"""Exercises of chapter 13: packed rows, pass@k, an answer's end, the sampler's mass."""

import itertools
import math

import torch

from course.kit.exercise import Exercise
from course.real_model import solutions
from refimpl.real import sharing

_OWNERS = (
    ([0, 0, 1, 2, 2],),
    ([0, 1, 1, 2, -1],),
    ([0, 0, 0, 1, 1, 2, 2, 3, -1, -1],),
)
_COUNTS = ((8, 1, 4), (8, 3, 2), (6, 2, 6), (10, 0, 3), (16, 5, 8), (4, 4, 2))


def _as_a_product(n: int, c: int, k: int) -> float:
    """Draw k one after the other; each must miss the right ones that are left."""
    miss = 1.0
    for drawn in range(k):
        miss *= max(0, n - c - drawn) / (n - drawn)
    return 1 - miss


def _by_enumeration(n: int, c: int, k: int) -> float:
    draws = list(itertools.combinations(range(n), k))
    return sum(min(draw) < c for draw in draws) / len(draws)


def _none_right(n: int, c: int, k: int) -> float:
    return math.comb(n - c, k) / math.comb(n, k)


def _own(owner: list[int]) -> torch.Tensor:
    whose = torch.tensor(owner)
    return whose[:, None] == whose


def _to_the_prompt(owner: list[int]) -> torch.Tensor:
    return (torch.tensor(owner) == 0).expand(len(owner), -1)


def _in_loops(owner: list[int]) -> list[list[int]]:
    return [
        [int(j <= i and owner[j] in (0, owner[i])) for j in range(len(owner))]
        for i in range(len(owner))
    ]


EXERCISES = (
    Exercise(
        "13.1",
        "A packed row",
        kind="predict",
        difficulty=1,
        minutes=5,
        solution=solutions.PACKED,
        mistakes={
            "Close: the last token of an answer predicts nothing. Who needs to read "
            "it?": 146,
            "Those are the repeated rows, 8 · (50 + 12).": 496,
            "Those are the repeated rows without the last tokens, 8 · (50 + 11).": 488,
            "That is one row of one answer.": 62,
            "That is one row of one answer without its last token.": 61,
            "Those are the answers alone. Who reads the prompt?": 88,
            "Those are the answers alone, and their last tokens are not needed.": 96,
            "One token less for every answer, not for the row.": 145,
        },
    ),
    Exercise(
        "13.2",
        "pass@k",
        difficulty=2,
        minutes=10,
        solution=solutions.pass_at_k,
        also=(_as_a_product, _by_enumeration),
        cases=_COUNTS,
        mistakes={
            "That draws with replacement: an answer drawn once is not drawn again.": (
                lambda n, c, k: 1 - (1 - c / n) ** k
            ),
            "That is the expected number of right answers among the k.": (
                lambda n, c, k: k * c / n
            ),
            "That is k times the share of right answers, capped: it counts a draw with "
            "two right ones twice.": lambda n, c, k: min(1.0, k * c / n),
            "You swapped right and wrong: C(n − c, k) counts draws without a right "
            "one.": lambda n, c, k: 1 - math.comb(c, k) / math.comb(n, k),
            "That is the probability of no right one; subtract it from 1.": _none_right,
            "That is the probability that all k are right.": (
                lambda n, c, k: math.comb(c, k) / math.comb(n, k)
            ),
            "That is the probability of exactly one right answer.": (
                lambda n, c, k: c * math.comb(n - c, k - 1) / math.comb(n, k)
            ),
            "That is mean@n: k does not occur in it.": lambda n, c, k: c / n,
        },
    ),
    Exercise(
        "13.3",
        "Who attends to whom",
        difficulty=3,
        minutes=15,
        solution=solutions.attends,
        also=(_in_loops, lambda owner: sharing.attends(torch.tensor([owner]))[0]),
        cases=_OWNERS,
        mistakes={
            "No causal order: a token sees what comes after it.": (
                lambda owner: (_own(owner) | _to_the_prompt(owner)).int()
            ),
            "The prompt is not seen by the answers.": lambda owner: (
                _own(owner).tril().int()
            ),
            "That is causal and no more: an answer sees the ones before it.": (
                lambda owner: torch.ones(len(owner), len(owner)).tril().int()
            ),
            "A token attends to itself as well; only what follows is hidden.": (
                lambda owner: (_own(owner) | _to_the_prompt(owner)).tril(-1).int()
            ),
            "Rows are who looks, columns what is looked at: yours is transposed.": (
                lambda owner: (_own(owner) | _to_the_prompt(owner)).tril().int().T
            ),
            "The answers see the prompt, and not their own earlier tokens.": (
                lambda owner: _to_the_prompt(owner).tril().int()
            ),
            "The padding's rows are empty: a softmax over nothing is NaN.": (
                lambda owner: (
                    solutions.attends(owner) * (torch.tensor(owner) >= 0)[:, None]
                )
            ),
        },
    ),
    Exercise(
        "13.4",
        "What was saved",
        kind="read",
        difficulty=2,
        minutes=5,
        solution=solutions.SHARE,
        mistakes={
            "Not all: padding is saved too, and each answer's last token.": 100,
            "That is how much is saved, of all tokens. Asked is what the saved ones "
            "were.": 70,
            "That is how many tokens are left, of all.": 30,
            "That is the rest: padding, and the answers' last tokens.": 10,
        },
    ),
    Exercise(
        "13.5",
        "The answers that do not end",
        kind="debug",
        difficulty=3,
        minutes=10,
        solution=solutions.LINE,
        mistakes={
            "Line 1 is right: padding is never read, so any token will do for it. Who "
            "takes it for something else?": 1,
            "Line 2 is right: 100 steps, the same in both runs.": 2,
            "Line 3 is right: 64 problems, other ones in every step.": 3,
            "Line 4 is right: the text ends in EOS, and it is in `ids`.": 4,
            "Line 5 is right: padded on the right, every token stands where it will "
            "when the model writes.": 5,
            "Line 6 is right: the logits at t predict the token at t + 1.": 6,
            "Line 8 is right: the mean over the tokens that the mask keeps. Which are "
            "they?": 8,
            "Line 9 is right: one optimiser step.": 9,
        },
    ),
    Exercise(
        "13.6",
        "Before any update",
        kind="predict",
        difficulty=3,
        minutes=10,
        solution=solutions.LARGEST,
        mistakes={
            "That holds where old_logp is the policy's. Here it is the sampler's, and "
            "the sampler renormalised.": 0.0,
            "That is the bound: at least top_p is kept. How much is kept here?": 0.1,
            "The token that reaches 0.9 stays: three tokens are kept.": 0.2,
            "That is the ratio; asked is how far it is from 1.": 0.95,
            "That is π_old over π_θ, two decimals: the ratio stands the other way "
            "round.": 0.053,
            "That would be a ratio of 0 or of 2; a drawn token's is at least 0.9.": 1.0,
        },
    ),
)
