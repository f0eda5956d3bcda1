"""Exercises of chapter 13: pass@k, an answer's end, groups that teach, two models."""

import math

from course.kit.exercise import Exercise


def pass_at_k(n: int, c: int, k: int) -> float:
    """13.pass_at_k: 1 − C(n−c, k) / C(n, k); `math.comb` is 0 where n − c < k."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def sign_test(only_a: int, only_b: int) -> float:
    """13.5: twice the smaller tail of a fair coin, and never more than 1."""
    return min(1.0, 2 * _tail(only_a, only_b))


_COUNTS = ((8, 1, 4), (8, 3, 2), (6, 2, 6), (10, 0, 3), (16, 5, 8), (4, 4, 2))
_SPLITS = ((14, 6), (6, 14), (0, 5), (5, 5), (3, 4), (0, 0), (40, 22))


def _tail(only_a: int, only_b: int) -> float:
    """The probability of at most as many heads as the rarer side has."""
    n = only_a + only_b
    return sum(math.comb(n, k) for k in range(min(only_a, only_b) + 1)) / 2**n


def _normal(only_a: int, only_b: int) -> float:
    n = only_a + only_b
    return math.erfc(abs(only_a - only_b) / math.sqrt(2 * n)) if n else 1.0


def _at_least_a(only_a: int, only_b: int) -> float:
    n = only_a + only_b
    return sum(math.comb(n, k) for k in range(only_a, n + 1)) / 2**n


def _just_this(only_a: int, only_b: int) -> float:
    return math.comb(only_a + only_b, only_a) / 2 ** (only_a + only_b)


TYPED = (
    Exercise(
        "13.pass_at_k",
        solution=pass_at_k,
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
            "That is the probability of no right one; subtract it from 1.": {
                "1 - math": "math"
            },
            "That is the probability that all k are right.": (
                lambda n, c, k: math.comb(c, k) / math.comb(n, k)
            ),
            "That is the share of groups that teach, where not all are alike. Here a "
            "draw of right answers alone counts, too.": (
                lambda n, c, k: (
                    1 - (math.comb(n - c, k) + math.comb(c, k)) / math.comb(n, k)
                )
            ),
            "That is the probability of exactly one right answer.": (
                lambda n, c, k: c * math.comb(n - c, k - 1) / math.comb(n, k)
            ),
            "That says whether any of the n answers is right. Of these only k are "
            "drawn.": lambda n, c, k: float(c > 0),
            "That is mean@n: k does not occur in it.": lambda n, c, k: c / n,
        },
    ),
)

EXERCISES = (
    Exercise(
        "13.1",
        lines=9,
        solution="7a",
        why="Padding is EOS, so `ids != pad` also leaves out the EOS that ends the "
        "answer. Nothing ever teaches the model to stop. Count instead: position < "
        "length, EOS included.",
        mistakes={
            "Line 1 does no harm by itself, because padding is never read. Which line "
            "takes it for something else?": "1a",
            "The text in line 4 ends in EOS, and it is in `ids`. Where is it "
            "lost?": "4a",
            "Padding on the right moves no token: each stands where it will stand when "
            "the model writes.": "5b",
            "The logits at t predict the token at t + 1, as line 6 has it.": "6d",
            "Line 8 takes the mean over the tokens that the mask keeps, and the mask "
            "keeps no padding. What else does it leave out?": "8c",
            "Both are cut at 1 in line 8, so the mask and the log-probs belong to the "
            "same tokens.": "8d",
            "The mask keeps no padding; it leaves out too much.": "7c",
            "The mask belongs to `ids`, and line 8 cuts both alike. Look at which "
            "tokens it leaves out.": "7d",
        },
    ),
    Exercise(
        "13.2",
        solution=0.45,
        decimals=2,
        why="Half of the groups are dead for certain; of the others 1 − 0.75⁸ − 0.25⁸ "
        "= 0.90 teach.",
        mistakes={
            "That is model C: you pooled the accuracy over all problems. Here half of "
            "the problems can never be solved.": 0.66,
            "That is the other half alone. What do the groups that are never right "
            "add?": 0.9,
            "That is the share of dead groups; the question asks how many teach.": 0.55,
            "That is the accuracy, 1/8, and the same for both models.": 0.13,
            "That is the accuracy, 1/8, which both models share.": 0.12,
            "That halves C's share. The problems that D can solve are easier for it, "
            "1/4 in place of 1/8, so more of their groups teach.": 0.33,
            "That is in percent. Give the share, with two decimals.": 45,
            "That is the share of problems that it can solve at all. A group of such a "
            "problem may still be all wrong.": 0.5,
        },
    ),
    Exercise(
        "13.3",
        solution="fewer",
        why="Any number is rewarded, so nothing ties the answer to the sum.",
        choices=("nearly all", "as many", "fewer", "none"),
        mistakes={
            "The reward is as high as that, but which part of it checks the sum?": (
                "nearly all"
            ),
            "What would hold them there? A wrong number is rewarded just like a right "
            "one.": "as many",
            "Nearly so in one run of three. But a wrong number is rewarded no more "
            "than a right one, so nothing drives out the last of them.": "none",
        },
    ),
    Exercise(
        "13.4",
        solution=0.2,
        decimals=2,
        why="The first two tokens stay and hold 0.8. A kept token has the ratio π / "
        "(π / 0.8) = 0.8.",
        mistakes={
            "That holds where old_logp is the policy's. Here it is the sampler's, and "
            "the sampler renormalised.": 0.0,
            "That is the bound: at least top_p is kept. How much is kept here?": 0.3,
            "The token that reaches 0.7 stays: two tokens are kept.": 0.5,
            "Two tokens hold 0.8 already, so the third is not kept.": 0.05,
            "That is the ratio; the question asks how far it is from 1.": 0.8,
            "That is with 0.7 as the kept mass, and with π_old over π_θ. How much do "
            "the kept tokens really hold?": 0.43,
            "That is π_old over π_θ: the ratio stands the other way round.": 0.25,
            "That is π_old over π_θ. The ratio stands the other way round, and the "
            "question asks how far it is from 1.": 1.25,
            "Two tokens hold 0.8 already, so the third is not kept. And that is π_old "
            "over π_θ.": 1.05,
            "That would be a ratio of 0 or of 2; a drawn token's is at least 0.7.": 1.0,
        },
    ),
    Exercise(
        "13.5",
        solution=sign_test,
        cases=_SPLITS,
        mistakes={
            "That is one side. A split the other way would have surprised you as "
            "much.": _tail,
            "A probability is at most 1: with equal counts both sides share the middle."
            "": lambda a, b: 2 * _tail(a, b),
            "That depends on which model is called A: it counts one direction only.": (
                _at_least_a
            ),
            "That counts up to `only_b` in place of the rarer side, so it depends on "
            "which model is called A.": [
                lambda a, b: 2 * _at_least_a(a, b),
                lambda a, b: min(1.0, 2 * _at_least_a(a, b)),
            ],
            "You count up to the larger side, which is always half of all or more. "
            "Count up to the smaller.": lambda a, b: min(
                1.0, 2 * (1 - _tail(a, b) + _just_this(a, b))
            ),
            "That is 1 minus the answer.": lambda a, b: 1 - sign_test(a, b),
            "That is the probability of exactly this split; a more uneven one counts, "
            "too.": _just_this,
            "That is twice the probability of exactly this split; a more uneven one "
            "counts as well.": [
                lambda a, b: 2 * _just_this(a, b),
                lambda a, b: min(1.0, 2 * _just_this(a, b)),
            ],
            "That is the normal approximation; with so few pairs, count exactly.": (
                _normal
            ),
            "That is z, which serves with many pairs. The question asks for a "
            "probability, counted exactly.": (
                lambda a, b: abs(a - b) / math.sqrt(a + b) if a + b else 1.0
            ),
            "That leaves out the split itself: “at least as uneven” includes it.": (
                lambda a, b: min(1.0, 2 * (_tail(a, b) - _just_this(a, b)))
            ),
        },
    ),
    Exercise(
        "13.7",
        solution="ratio",
        why="Weight × gate × ratio × advantage, times ∇log π.",
        choices=("ratio", "reward", "entropy"),
        mistakes={
            "The reward is in the advantage already.": "reward",
            "An entropy bonus is a term of its own, next to this product.": "entropy",
        },
    ),
    Exercise(
        "13.8",
        solution="lifts all others",
        why="What a token loses goes to all others, most of which "
        "nobody meant to lift.",
        choices=("lifts all others", "makes answers long", "needs more steps"),
        mistakes={
            "The gate acts on single tokens and does not look at lengths. Where "
            "does the lost probability go?": "makes answers long",
            "How many steps it takes is not the point. Where "
            "does the lost probability go?": "needs more steps",
        },
    ),
    Exercise(
        "13.9",
        solution="grows",
        why="It is what the updates maximise on these data. The "
        "accuracy is what turns around.",
        choices=("grows", "turns around", "stays"),
        mistakes={
            "The accuracy does. The surrogate is the very thing "
            "that the updates raise.": "turns around",
            "Every update raises it, since it is the objective.": "stays",
        },
    ),
)
