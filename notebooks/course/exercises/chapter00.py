"""Exercises of chapter 00: verifier, expectation, mask, temperature."""

import torch

from course.exercises import Exercise
from course.exercises.solutions import chapter00 as solutions

_LOGP = torch.tensor([[-0.5, -1.0, -3.0], [-0.2, -9.0, -9.0]])
_MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
_LOGITS = torch.tensor([2.0, 0.0, -1.0])

EXERCISES = (
    Exercise(
        "0.1",
        "Write the verifier",
        difficulty=2,
        minutes=10,
        solution=solutions.my_verify,
        cases=(
            ("3+9=12;#12", 12),
            ("#12", 12),
            ("#1#12", 12),
            ("12", 12),
            ("#012", 12),
            ("#12;", 12),
            ("#112", 12),
            ("#", 0),
            ("#3+9", 12),
        ),
        mistakes={
            "`in` pays for listing every number: '#1#12' and '#112' contain 12 too.": (
                lambda response, answer: str(answer) in response
            ),
            "Comparing the end alone accepts '12' without '#', and '#112'.": (
                lambda response, answer: response.endswith(str(answer))
            ),
            "'#' + answer at the end still accepts '#1#12': count the '#'.": (
                lambda response, answer: response.endswith(f"#{answer}")
            ),
            "int() forgives: '#012' is not how 12 is written.": (
                lambda response, answer: (
                    response.count("#") == 1
                    and response.split("#")[1].isdigit()
                    and int(response.split("#")[1]) == answer
                )
            ),
        },
    ),
    Exercise(
        "0.2",
        "What a mix of habits earns",
        difficulty=1,
        minutes=5,
        solution=solutions.expected_reward,
        cases=(
            ([0.3, 0.45, 0.25], [0.96, 0.08, 0.02]),
            ([1.0, 0.0, 0.0], [0.96, 0.08, 0.02]),
        ),
        mistakes={
            "You averaged the accuracies: weigh each by how often the habit occurs.": (
                lambda shares, accuracies: sum(accuracies) / len(accuracies)
            ),
            "That is what the best habit would earn, not this mix.": (
                lambda shares, accuracies: max(accuracies)
            ),
        },
    ),
    Exercise(
        "0.3",
        "Mean log-prob of a response",
        difficulty=2,
        minutes=5,
        solution=solutions.mean_logp,
        cases=((_LOGP, _MASK),),
        mistakes={
            "You divide by T, the padded width. Divide by |o_i|, the row's own.": (
                lambda logp, mask: (logp * mask).mean(-1)
            ),
            "You count padding as text: multiply by the mask before you add up.": (
                lambda logp, mask: logp.mean(-1)
            ),
            "That is the sum. It shrinks with length; divide by |o_i|.": (
                lambda logp, mask: (logp * mask).sum(-1)
            ),
            "One number for the batch: keep the rows apart with dim=-1.": (
                lambda logp, mask: (logp * mask).sum() / mask.sum()
            ),
        },
    ),
    Exercise(
        "0.4",
        "Log-probs at a temperature",
        difficulty=2,
        minutes=5,
        solution=solutions.log_probs_at,
        cases=((_LOGITS, 0.5), (_LOGITS, 1.0), (_LOGITS, 2.0)),
        mistakes={
            "A temperature divides: T < 1 sharpens, T > 1 flattens.": (
                lambda logits, t: (logits * t).log_softmax(-1)
            ),
            "You divide after normalising: the probabilities no longer add up to 1.": (
                lambda logits, t: logits.log_softmax(-1) / t
            ),
            "Those are probabilities: take the log.": (
                lambda logits, t: (logits / t).softmax(-1)
            ),
            "You ignore the temperature: right only at T = 1.": (
                lambda logits, t: logits.log_softmax(-1)
            ),
        },
    ),
)
