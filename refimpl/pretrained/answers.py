"""Answers of language models: what in a text is the answer, and whether it is right.

    The answer is 4 + 6 = 10.      whole: the text itself      last: 10

A reward function here has TRL's signature, and looks for a column `answer`.
"""

import functools
import re
from collections.abc import Callable, Collection
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from refimpl.pretrained import judge, notation
from refimpl.pretrained.extras import needed
from refimpl.validation import Positive, UserError, guarded, shown

Extract = Literal["whole", "last", "tag"]
"""The place of the answer in a completion."""

HABITS = ("bare", "equation", "sentence", "other")
MATHEMATICS: tuple[str, str, dict] = ("math_verify", "", {})


@guarded
def extracted(completion: str, answer: Any, how: Extract = "whole") -> str:
    """The part of `completion` that is compared with the reference `answer`.

    - whole: all of it, without white space at its ends.
    - last: what it ends with, in the form of the reference: its last number if that is
      a number, its last word if that is a word, as many lines as that has; else what
      its last line says after `is`, `:` or `=`. Of `5, not 6` it is 5.
    - tag: what stands in the last `<answer>…</answer>`, where a prompt asks for one.
      The opening tag may be missing: some prompts end in it.

    A box around it, `\\boxed{…}`, is taken off; `last` looks into the last tag or box,
    if there is one. An empty string if there is no such part.
    """
    text = completion.strip()
    if how != "last":
        text = notation.in_tag(text) if how == "tag" else text
        boxed = notation.in_box(text) if text.startswith("\\boxed") else None
        return boxed if boxed and text.endswith("}") else text
    (text, is_marked), reference = notation.marked(text), str(answer).strip()
    if not is_marked:
        text = notation.affirmed(text, reference)
    if notation.is_number(reference):
        every = notation.numbers(text, reference)
        return every[-1] if every else ""
    if len(reference.splitlines()) > 1:
        return notation.last_lines(text, reference)
    last = notation.last_lines(text, reference)
    if answer is None or not text:
        return last.strip()
    if len(reference.split()) == 1 and text.split():
        return notation.bare(text.split()[-1], reference)
    return notation.tail(last, reference)


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
    reward hacking. Numbers are compared by value, 1,000 as 1000.0; an answer that is no
    number pays if the text contains it. Of a long text the end is looked through.
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
    text = judge.end_of(text, "contains_answer")
    if notation.is_number(right):
        value = _value(right)
        return any(_value(number) == value for number in notation.numbers(text, right))
    return bool(right) and right in text


def _value(number: str) -> Decimal | str:
    """To compare by; a text where its exponent is beyond all numbers."""
    power_of_ten = re.sub(r"^([-+]?)10\^", r"\g<1>1e", number.replace(",", ""))
    try:
        return Decimal(power_of_ten.replace("{", "").replace("}", ""))
    except InvalidOperation:
        return number


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

    The final answer stands in the last `<answer>…</answer>`, the last `\\boxed{…}`, or
    else at the end of a line. A reference that is a word or a letter (`Monday`,
    `\\text{(C)}`) is compared as one; any other is a formula, with `$` or without, and
    is compared by math-verify: `1/2`, `0.5`, `½` and `\\frac{1}{2}` are one number.
    That runs in the scoring process (see `refimpl.pretrained.judge`), `time_limit`
    seconds each: what takes longer, such as 9**9**9, is wrong.

    As math-verify does, it forgives units, the order of a list, and a decimal within
    1e-6 of a fraction. It does not forgive a base: 4210_7 is not 4210_5, nor is 4210.

    Raises `UserError` if a reference cannot be read, naming its row, or if math-verify
    is not installed (`pip install "refimpl[real]"`).
    """
    check_length(completions, answer)
    references = [str(right).strip() for right in answer]
    check_references(references, float(time_limit))
    said = [
        _said(text, reference) if isinstance(text, str) else 0.0
        for text, reference in zip(completions, references, strict=True)
    ]
    asked = [(x, r) for x, r in zip(said, references) if isinstance(x, str)]
    given, against = [x for x, _ in asked], [notation.formula(r) for _, r in asked]
    judged = iter(judge.scores(MATHEMATICS, given, against, float(time_limit)))
    return [next(judged) if isinstance(x, str) else x for x in said]


def _said(completion: str, reference: str) -> float | str:
    """The verdict where texts decide, else what is to be compared as mathematics."""
    text, is_marked = notation.marked(completion)
    text = judge.end_of(text, MATHEMATICS[0])
    if not notation.is_number(reference) and notation.says(text, reference):
        return 1.0
    if not is_marked:
        text = notation.affirmed(text, reference)
    word = notation.words(reference)
    if word is not None:
        ends = notation.tail(notation.last_lines(text, reference), reference)
        ends = notation.CHOICE.sub(r"\1", ends) if len(word) == 1 else ends
        said = (text, ends) if is_marked else (ends, notation.last_words(text, word))
        return float(notation.opens(text, word) or word in map(notation.words, said))
    if notation.is_number(reference):
        text = notation.without_unit(notation.joined(text, reference))
    if is_marked:
        text = notation.bare(text, reference, "*_` ")  # Markdown's
    if is_marked and (notation.is_formula(text) or "$" not in text):
        return notation.formula(text)
    text = notation.without_money(text)
    if "$" in text or r"\(" in text or r"\[" in text:
        return text
    lines = text.strip().splitlines()
    number = notation.is_number(reference)
    for line in reversed(lines[-1:] if number else lines):
        if notation.is_formula(end := notation.tail(line, reference)):
            return notation.formula(end)
    return notation.formula(notation.quantity(text)) if number else text


def check_references(answer: Collection[Any], time_limit: float = 2.0) -> None:
    """Raise `UserError` at the first of these that `math_correct` cannot read.

    A run asks for those of its first rows before it begins; give all of a data set.
    """
    needed("math_verify")
    for row, right in enumerate(answer):
        if why := _unreadable(str(right).strip(), time_limit):
            raise UserError(
                f"the reference in row {row}, {shown(right)}, cannot be read as "
                f"mathematics ({why}): mend that row or leave it out, or judge it by a "
                "function of your own"
            )


@functools.lru_cache(maxsize=2**16)
def _unreadable(reference: str, time_limit: float) -> str:
    """Why a reference does not equal itself; empty if it does."""
    if notation.words(reference) is not None:
        return ""
    if notation.is_date(reference):
        return "it looks like a date, which would be a difference or a quotient"
    one = notation.formula(reference)
    (reply,) = judge.verdicts(MATHEMATICS, [(one, one)], time_limit)
    return "" if reply.get("score") == 1.0 else judge.fate(reply, time_limit)


def _check_rows(rows: list[dict]) -> None:
    check_references([row["answer"] for row in rows if "answer" in row])


math_correct.check_rows = _check_rows  # type: ignore[attr-defined]
Reward = Callable[..., list[float]]
