"""Exercises of chapter 13: packed rows, pass@k, an answer's end, the sampler's mass."""

import itertools
import math

import torch

from course.kit.exercise import Exercise
from refimpl.real import sharing


def pass_at_k(n: int, c: int, k: int) -> float:
    """13.2: 1 − C(n−c, k) / C(n, k); `math.comb` is 0 where n − c < k."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def attends(owner: list[int]) -> torch.Tensor:
    """13.3: to what stands before (itself included), of the prompt or its own."""
    whose = torch.tensor(owner)
    same = whose[:, None] == whose
    return (same | (whose == 0)).tril().int()


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
        minutes=5,
        solution=138,
        why="50 + 8 · 11. The last token of an answer predicts nothing, and is left "
        "out.",
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
        minutes=10,
        solution=pass_at_k,
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
        minutes=15,
        solution=attends,
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
                lambda owner: attends(owner) * (torch.tensor(owner) >= 0)[:, None]
            ),
        },
    ),
    Exercise(
        "13.4",
        minutes=5,
        solution=90,
        why="304 − 92 = 212 tokens are saved. Seven of eight prompts, 7 · 26 = 182, "
        "are 86 % of them; 22 were padding, and 8 are the answers' last tokens.",
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
        minutes=10,
        solution=7,
        why="Padding is EOS, so `ids != pad` also leaves out the EOS that ends the "
        "answer. Nothing ever teaches the model to stop. Count instead: position < "
        "length, EOS included.",
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
        minutes=10,
        solution=0.05,
        why="The first three tokens stay and hold 0.95. A kept token has the ratio π / "
        "(π / 0.95) = 0.95.",
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
