"""Exercises of chapter 00: rewards, SFT, temperature, a bug.

`TYPED` is the verifier that the reader types in the chapter.
"""

import re

import torch

from course.kit.exercise import Exercise


def verify(response: str, answer: int) -> bool:
    """Split at '#': exactly two parts, and the second is the answer as written."""
    parts = response.split("#")
    return len(parts) == 2 and parts[1] == str(answer)


def log_probs_at(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Divide the logits first, normalise afterwards."""
    return (logits / temperature).log_softmax(-1)


_LOGITS = torch.tensor([2.0, 0.0, -1.0])


EXERCISES = (
    Exercise(
        "0.1",
        solution=4,
        why="Five terms need four steps, so a careful answer earns at most four "
        "sixths. A ramble can take six steps and earn the full reward.",
        mistakes={
            "Five terms need only four steps: the first step adds two of them.": 5,
            "Six steps earn the full reward, but a sum has at most five terms. How "
            "many steps does it take to add them?": 6,
            "That is a sum of four terms. The longest sums have five.": 3,
            "That is the reward itself. How many sixths is it?": 4 / 6,
        },
    ),
    Exercise(
        "0.2",
        solution="no more than before",
        choices=("nearly all", "about half", "no more than before"),
        mistakes={
            "It has to give the sum at once, without any steps, and no demonstration "
            "shows how. What else can bring the loss down?": "nearly all",
            "A model of this size cannot add five numbers at once, and it never sees "
            "any other sums. What can it do with these 128?": "about half",
        },
    ),
    Exercise(
        "0.3",
        solution=log_probs_at,
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
            "The normaliser must see the divided logits, too: divide first.": (
                lambda logits, t: logits / t - logits.logsumexp(-1)
            ),
            "You divide the probabilities, inside the log. Divide the logits.": (
                lambda logits, t: (logits.softmax(-1) / t).log()
            ),
            "Those are still logits: after dividing, normalise.": (
                lambda logits, t: logits / t
            ),
        },
    ),
    Exercise(
        "0.4",
        solution="6a",
        lines=11,
        why="The labels of the padding must be -100 as well, or the mean counts the "
        "easiest tokens of all.",
        mistakes={
            "The reason is right, but rows of unequal length must be padded. Which "
            "line decides what the loss makes of the padding?": "4a",
            "The reason is right, and line 7 computes the loss, but it takes the "
            "labels as they are. Which line makes them?": "7a",
            "The reason is right, but line 5 marks the prompt, and marks it rightly. "
            "Which line forgets the other tokens that nobody wrote?": "5a",
            "Line 3 is right: without `<eos>` no answer would learn to end.": "3b",
            "Line 7 is right: this model shifts the labels by one itself.": "7c",
            "The line is right, but the model shifts the labels by one itself.": "6c",
            "Line 11 is right: cleared after the step is cleared before the "
            "next.": "11d",
            "Line 8 is right: line 11 has cleared them in the step before.": "8d",
        },
    ),
)


TYPED = (
    Exercise(
        "00.verify",
        solution=verify,
        cases=(
            ("3+9=12;#12", 12),
            ("#12", 12),
            ("#1#12", 12),
            ("#12#1", 12),
            ("12", 12),
            ("#012", 12),
            ("#１２", 12),
            ("0+0=0;#0", 0),
            ("#12;", 12),
            ("#12 ", 12),
            ("#12\n", 12),
            ("# 12", 12),
            ("#112", 12),
            ("#", 0),
            ("#3+9", 12),
        ),
        mistakes={
            "`in` rewards answers that list every number: '#1#12' and '#112' contain "
            "12 too.": (lambda response, answer: str(answer) in response),
            "Comparing the end alone accepts '12' without '#', and '#112'.": (
                lambda response, answer: response.endswith(str(answer))
            ),
            "'#' + answer at the end still accepts '#1#12': count the '#'.": (
                lambda response, answer: response.endswith(f"#{answer}")
            ),
            "You look only behind the last '#', so '#1#12' passes, and '12' without "
            "any '#' as well: count the '#'.": (
                lambda response, answer: response.split("#")[-1] == str(answer)
            ),
            "You look only at the part behind the first '#', so '#12#1' passes: count "
            "the '#'.": lambda response, answer: (
                "#" in response and response.split("#")[1] == str(answer)
            ),
            "`in` finds '#12' in '#112#12' and in '#12;' as well. Nothing may follow, "
            "and there may be only one '#'.": (
                lambda response, answer: f"#{answer}" in response
            ),
            "'#112' has one '#' and ends in 12. Compare the whole part behind it.": (
                lambda response, answer: (
                    response.count("#") == 1 and response.endswith(str(answer))
                )
            ),
            "Where the sum is 0, the honest answer is '#0'. You refuse it.": [
                lambda response, answer: (
                    (found := re.fullmatch(r"[^#]*#([1-9]\d*)", response)) is not None
                    and int(found[1]) == answer
                ),
                lambda response, answer: (
                    len(parts := response.split("#")) == 2
                    and parts[1].isdigit()
                    and not parts[1].startswith("0")
                    and int(parts[1]) == answer
                ),
            ],
            "`search` finds the end alone, so '#1#12' passes: count the '#'. And '$' "
            "matches before a final line break as well.": [
                lambda response, answer: (
                    (found := re.search(r"#(\d+)$", response)) is not None
                    and found[1] == str(answer)
                ),
                lambda response, answer: (
                    (found := re.search(r"#(\d+)$", response)) is not None
                    and int(found[1]) == answer
                ),
            ],
            "You never return True. The answer is a number and a part of the response "
            "a text, so compare with str(answer).": lambda response, answer: False,
            "Your verifier rejects an answer that shows its steps before the '#'.": (
                lambda response, answer: response == f"#{answer}"
            ),
            "int() is too lenient: it accepts '#012', which is not 12 as written.": [
                lambda response, answer: (
                    len(parts := response.split("#")) == 2
                    and parts[1].isdigit()
                    and int(parts[1]) == answer
                ),
                lambda response, answer: (
                    len(parts := response.split("#")) == 2
                    and parts[1].strip().isdigit()
                    and int(parts[1]) == answer
                ),
            ],
            "strip() is too lenient: '#12 ' ends in a space, and nothing may follow.": {
                "parts[1] ==": "parts[1].strip() =="
            },
        },
    ),
)
