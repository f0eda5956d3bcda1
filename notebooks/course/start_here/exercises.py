"""Exercises of chapter 00: verifier, mask, temperature, the map, a bug."""

import torch

from course.kit.exercise import Exercise


def my_verify(response: str, answer: int) -> bool:
    """Split at '#': exactly two parts, and the second is the answer as written."""
    parts = response.split("#")
    return len(parts) == 2 and parts[1] == str(answer)


def mean_logp(logp: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(1/|o_i|) Σ_t log π(o_t): padding neither in the sum nor in the count."""
    return (logp * mask).sum(-1) / mask.sum(-1)


def log_probs_at(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Divide the logits first, normalise afterwards."""
    return (logits / temperature).log_softmax(-1)


_LOGP = torch.tensor([[-0.5, -1.0, -3.0], [-0.2, -9.0, -9.0]])
_MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
_LOGITS = torch.tensor([2.0, 0.0, -1.0])


def _by_count(response, answer):
    end = f"#{answer}"
    return response.count("#") == 1 and response[response.index("#") :] == end


def _by_partition(response, answer):
    _, mark, after = response.partition("#")
    return bool(mark) and "#" not in after and after == f"{answer}"


def _row_by_row(logp, mask):
    return torch.stack([row[m > 0].mean() for row, m in zip(logp, mask)])


def _by_logsumexp(logits, temperature):
    scaled = logits / temperature
    return scaled - scaled.logsumexp(-1)


EXERCISES = (
    Exercise(
        "0.1",
        minutes=10,
        solution=my_verify,
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
        also=(_by_count, _by_partition),
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
        minutes=5,
        solution="guess",
        choices=("careful", "guess", "ramble"),
        mistakes={
            "Careful is the best habit, not the favourite one. A temperature sharpens "
            "what the policy prefers, and knows nothing of rewards.": "careful",
            "Rambling is the rarest of the three; cooling makes it rarer.": "ramble",
            "Cooling does not keep the mix: it raises the share of the likeliest.": (
                "the mix stays"
            ),
        },
    ),
    Exercise(
        "0.3",
        minutes=5,
        solution=mean_logp,
        cases=((_LOGP, _MASK),),
        also=(_row_by_row,),
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
        minutes=5,
        solution=log_probs_at,
        cases=((_LOGITS, 0.5), (_LOGITS, 1.0), (_LOGITS, 2.0)),
        also=(_by_logsumexp,),
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
            "Those are still logits: after dividing, normalise.": (
                lambda logits, t: logits / t
            ),
        },
    ),
    Exercise(
        "0.5",
        minutes=5,
        solution="CISPO",
        choices=("GRPO", "CISPO", "SAPO"),
        mistakes={
            "GRPO's blue line is at 0 there: the clip has cut the token off.": "GRPO",
            "SAPO's soft gate has faded the token: its line bends down again.": "SAPO",
            "REINFORCE was not among the three: it counts every token as 1.": (
                "REINFORCE"
            ),
        },
    ),
    Exercise(
        "0.6",
        minutes=10,
        solution=6,
        why="The padding must be masked as well, or the mean counts the easiest tokens "
        "of all.",
        mistakes={
            "Line 1 is right: both runs take 40 steps.": 1,
            "Line 2 is right: other demonstrations in every step.": 2,
            "Line 3 is right: the end-of-sequence token must be learned too.": 3,
            "Line 4 is right: rows of unequal length must be padded. But what does the "
            "loss make of the padding?": 4,
            "Line 5 is right: the prompt is given, and is not learned.": 5,
            "Line 7 is right: the model shifts the labels by one itself.": 7,
            "Line 8 is right: it differentiates the loss.": 8,
            "Line 9 is right: a norm above 1 is scaled down.": 9,
            "Line 10 is right: one step per batch.": 10,
            "Line 11 is right: gradients are cleared in every step.": 11,
        },
    ),
)
