"""Exercises of chapter 04: a plot, token weights, the token mean, a bug."""

import torch

from course.kit.exercise import Exercise


def token_weights(lengths: list[int], limit: int) -> tuple[list[float], list[float]]:
    """GRPO: 1/(B|o_i|), its own length. Dr. GRPO: 1/(B·L_max), the same for all."""
    rows = len(lengths)
    return [1 / (rows * n) for n in lengths], [1 / (rows * limit) for _ in lengths]


def _as_tensors(lengths, limit):
    """4.2 with tensors for lists."""
    each = 1.0 / torch.tensor(lengths) / len(lengths)
    return each, torch.full((len(lengths),), 1.0 / limit / len(lengths))


EXERCISES = (
    Exercise(
        "4.1",
        minutes=5,
        solution="twice as much",
        why="(2/π)(arcsin √0.11 − arcsin √0.01) = 0.15, and 0.06 for 0.45 to 0.55: 2.4 "
        "times.",
        choices=("as much", "twice as much", "ten times as much"),
        mistakes={
            "That is Dr. GRPO's straight line. GRPO's curve is steeper near p = 0.": (
                "as much"
            ),
            "The slope at p = 0 is large, but read the two heights: 0.06 and 0.22.": (
                "ten times as much"
            ),
            "The rise from 0.01 to 0.11 is 0.15, that from 0.45 to 0.55 is 0.06.": (
                "half as much"
            ),
        },
    ),
    Exercise(
        "4.2",
        minutes=10,
        solution=token_weights,
        also=(_as_tensors,),
        cases=(([10, 2, 3, 30], 48), ([4, 4], 8), ([1, 7, 16], 64)),
        mistakes={
            "You swapped them: GRPO looks at the length, Dr. GRPO does not.": (
                lambda lengths, limit: token_weights(lengths, limit)[::-1]
            ),
            "The longest response of the batch is no constant: use the limit.": (
                lambda lengths, limit: token_weights(lengths, max(lengths))
            ),
            "1/Σ|o| is the token mean (DAPO). Dr. GRPO's divisor is a constant.": (
                lambda lengths, limit: (
                    [1 / (len(lengths) * n) for n in lengths],
                    [1 / sum(lengths) for _ in lengths],
                )
            ),
            "The mean over responses stays in both: divide by their number as well.": (
                lambda lengths, limit: (
                    [1 / n for n in lengths],
                    [1 / limit for _ in lengths],
                )
            ),
            "That is the weight of the whole response. A token has 1/|o| of it.": (
                lambda lengths, limit: (
                    [1 / len(lengths) for _ in lengths],
                    [n / (len(lengths) * limit) for n in lengths],
                )
            ),
        },
    ),
    Exercise(
        "4.3",
        minutes=10,
        solution=["shorter", "longer"],
        why="The divisor holds the response's own length, so a token of a long "
        "response is divided by more. The pull is GRPO's, weaker; in a large batch one "
        "length hardly matters, and it is then near none.",
        parts=("the right response", "the wrong response"),
        mistakes={
            "Within a batch the weights are equal, but the divisor holds the "
            "response's own length: a long response makes all tokens weigh less.": (
                ["none", "none"]
            ),
            "Exchanged. A longer response divides its fine by more, so a wrong one "
            "gets longer. A payment shrinks too, so a right one gets shorter.": (
                ["longer", "shorter"]
            ),
            "Both are divided by the same sum, so the right one is pushed as well.": (
                ["none", "longer"]
            ),
            "Both are divided by the same sum, so the wrong one is pushed as well.": (
                ["shorter", "none"]
            ),
            "Right and wrong have advantages of opposite sign, so opposite pushes.": (
                ["shorter", "shorter"]
            ),
            "A payment that is divided by more is smaller: the right one shrinks.": (
                ["longer", "longer"]
            ),
        },
    ),
    Exercise(
        "4.4",
        minutes=10,
        solution=2,
        why="A response ends with EOS, which pads as well: this mask takes the token "
        "out of the loss that ends the response. What is left are tokens that go on. "
        "Right responses make them likelier and never end; wrong ones make them less "
        "likely and shrink. Keep the first EOS in the mask.",
        mistakes={
            "Line 1 is right: responses of unequal length must be padded.": 1,
            "Line 3 is right: one row per prompt, with its G rewards.": 3,
            "Line 4 is right: Dr. GRPO subtracts the group's mean, without the std.": 4,
            "Line 5 is right: old log-probs are taken once, before the updates.": 5,
            "Line 6 is right: K updates on one rollout, old log-probs unchanged.": 6,
            "Line 7 is right: the ratio is that of each token.": 7,
            "Line 8 is right: the smaller of r·A and clip(r)·A, as in PPO.": 8,
            "Line 9 is right: a constant divisor favours no length.": 9,
            "Line 10 is right: the gradient is cleared, computed and followed.": 10,
        },
    ),
)
