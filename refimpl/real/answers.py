"""Answers of language models: what in a text is the answer, and whether it is right.

    The answer is 4 + 6 = 10.      whole: the text itself      last: 10

A reward function here has TRL's signature, and looks for a column `answer`.
"""

import re
from collections.abc import Callable, Collection
from typing import Any, Literal

from refimpl.checks import Positive, UserError, guarded
from refimpl.real import judge
from refimpl.real.extras import needed

Extract = Literal["whole", "last", "tag"]
"""Where in a completion the answer stands."""

HABITS = ("bare", "equation", "sentence", "other")
NUMBER = re.compile(
    r"(?:(?<![\w.])-)?(?<![\w.^])(?<!\^\{)"  # not inside a word, and no exponent
    r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][-+]?\d+|\^\{?[-+]?\d+\}?)?",
    re.ASCII,
)
_AROUND_A_WORD = " \t\"'`*.,;:!?()[]{}<>"


@guarded
def extracted(completion: str, answer: Any, how: Extract = "whole") -> str:
    """The part of `completion` that is compared with the reference `answer`.

    - whole: all of it, without white space at its ends.
    - last: what it ends with, in the form of the reference: its last number if that is
      a number, its last word if that is a word, else its last line.
    - tag: what stands in the last `<answer>…</answer>`, where a prompt asks for one.
      The opening tag may be missing: some prompts end in it.

    An empty string if there is no such part.
    """
    text = completion.strip()
    if how == "whole":
        return text
    if how == "tag":
        before, tag, _ = text.rpartition("</answer>")
        return before.rpartition("<answer>")[2].strip() if tag else ""
    reference = str(answer).strip()
    if NUMBER.fullmatch(reference):
        every = numbers(text)
        return every[-1] if every else ""
    if not reference.split()[1:]:
        return text.split()[-1].strip(_AROUND_A_WORD) if text else ""
    return text.splitlines()[-1].strip() if text else ""


def numbers(text: str) -> list[str]:
    """Every number in `text`, with its sign: a hyphen or a minus (U+2212)."""
    return NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))


def habit(completion: str) -> str:
    """The form of an answer: bare, equation, sentence, or other.

    bare: one number or word; equation: one line with `=`; sentence: one line of words;
    other: nothing at all, or more than one line.
    """
    text = completion.strip()
    if not text or "\n" in text:
        return "other"
    if not text.split()[1:] and "=" not in text:
        return "bare"
    return "equation" if "=" in text else "sentence"


@guarded
def contains_answer(
    prompts: Any, completions: Collection[Any], *, answer: Collection[Any], **columns
) -> list[float]:
    """A lax scorer, to be fooled: 1.0 if the right number stands anywhere in the text.

    So an answer that lists every number is always paid: what chapter 13 shows as
    reward hacking. An answer that is no number pays if the text contains it.
    """
    check_length(completions, answer)
    return [
        float(isinstance(text, str) and _contains(text, str(right).strip()))
        for text, right in zip(completions, answer, strict=True)
    ]


def check_length(completions: Collection, answer: Collection) -> None:
    """Raise `UserError` unless each completion has its answer."""
    if len(completions) != len(answer):
        raise UserError(
            f"{len(completions)} completions, and {len(answer)} in answer: give one "
            "for each"
        )


def _contains(text: str, right: str) -> bool:
    text = text[: judge.MAX_ANSWER_CHECKED]
    if NUMBER.fullmatch(right):
        return right in numbers(text)
    return bool(right) and right in text


@guarded
def math_correct(
    prompts: Any,
    completions: Collection[Any],
    *,
    answer: Collection[Any],
    time_limit: Positive = 2.0,
    **columns,
) -> list[float]:
    """1.0 where the final answer equals the reference as mathematics, else 0.0.

    By math-verify: `1/2`, `0.5`, `\\frac{1}{2}` and `\\boxed{0.5}` are one number. Its
    comparison runs in the scoring process (see `refimpl.real.judge`), `time_limit`
    seconds each: what takes longer, such as 9**9**9, is wrong.

    Raises `UserError` if math-verify is not installed (`pip install "refimpl[real]"`).
    """
    check_length(completions, answer)
    needed("math_verify")
    references = [str(right) for right in answer]
    return judge.scores(
        ("math_verify", "", {}), completions, references, float(time_limit)
    )


Reward = Callable[..., list[float]]
