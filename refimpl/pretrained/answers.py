"""Extract the answer from a language model's text, and compare it with the reference.

    The answer is 4 + 6 = 10.      whole: the text itself      last: 10

The reward functions have TRL's signature and need a column `answer`.
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
"""The part of a completion that is taken as its answer, see `extracted`."""

HABITS = ("bare", "equation", "sentence", "other")
MATHEMATICS: tuple[str, str, dict] = ("math_verify", "", {})


@guarded
def extracted(completion: str, answer: Any, how: Extract = "whole") -> str:
    """Return the part of `completion` that is compared with the reference `answer`.

    - whole: all of it, without white space at its ends.
    - last: the end of the completion, in the form of the reference. If the reference
      is a number, the last number; if a word, the last word; if it has several lines,
      as many lines; else the text after `is`, `:` or `=` in the last line. In
      `5, not 6` the answer is 5.
    - tag: the content of the last `<answer>…</answer>`, for prompts that ask for one.
      The opening tag may be missing, because some prompts end with it.

    A box around the answer, `\\boxed{…}`, is removed; `last` looks inside the last tag
    or box if there is one. The result is an empty string if there is no such part.
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
        numbers = notation.numbers(text, reference)
        return numbers[-1] if numbers else ""
    if len(reference.splitlines()) > 1:
        return notation.last_lines(text, reference)
    last = notation.last_lines(text, reference)
    if answer is None or not text:
        return last.strip()
    if len(reference.split()) == 1 and text.split():
        return notation.bare(text.split()[-1], reference)
    return notation.tail(last, reference)


def habit(completion: str) -> str:
    """Name the form of an answer: bare, equation, sentence, or other.

    bare: one number or word; equation: one line with `=`; sentence: one line of words;
    other: an empty text, or more than one line.
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
    """A lenient scorer that can be fooled: 1.0 if the text contains the right answer.

    A completion that lists all numbers always gets the reward, which is chapter 13's
    example of reward hacking. Numbers are compared by value, so that 1,000 equals
    1000.0. Only the end of a long text is searched.
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
    """The number as a `Decimal`; the text itself where its exponent is too large."""
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

    The final answer is in the last `<answer>…</answer>`, in the last `\\boxed{…}`, or
    else at the end of a line. A reference that is a word or a letter (`Monday`,
    `\\text{(C)}`) is compared as text. Any other reference is a formula, with `$` or
    without, compared by math-verify: `1/2`, `0.5`, `½` and `\\frac{1}{2}` are equal.
    math-verify runs in the scoring process (see `refimpl.pretrained.judge`) and has
    `time_limit` seconds per answer. An answer that takes longer, such as 9**9**9, is
    wrong.

    Like math-verify, this function forgives units, the order of a list, and a decimal
    within 1e-6 of a fraction. It does not forgive another base: neither 4210_5 nor 4210
    equals 4210_7.

    Raises `UserError` if a reference cannot be read, naming its row, or if math-verify
    is not installed (`pip install "refimpl[real]"`).
    """
    check_length(completions, answer)
    references = [str(right).strip() for right in answer]
    check_references(references, float(time_limit))
    results = [
        _score_or_formula(text, reference) if isinstance(text, str) else 0.0
        for text, reference in zip(completions, references, strict=True)
    ]
    pairs = [(x, r) for x, r in zip(results, references) if isinstance(x, str)]
    given, against = [x for x, _ in pairs], [notation.formula(r) for _, r in pairs]
    judged = iter(judge.scores(MATHEMATICS, given, against, float(time_limit)))
    return [next(judged) if isinstance(x, str) else x for x in results]


def _score_or_formula(completion: str, reference: str) -> float | str:
    """The score if comparing texts decides it, else the formula for math-verify."""
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
        parts = (text, ends) if is_marked else (ends, notation.last_words(text, word))
        return float(notation.opens(text, word) or word in map(notation.words, parts))
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
    """Raise `UserError` at the first reference that `math_correct` cannot read.

    A run checks the references of its first rows before it begins. Call this function
    to check a whole data set.
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
    """The reason why a reference does not equal itself; empty if it does."""
    if notation.words(reference) is not None:
        return ""
    if notation.is_date(reference):
        return "it looks like a date, which would be a difference or a quotient"
    formula = notation.formula(reference)
    (reply,) = judge.verdicts(MATHEMATICS, [(formula, formula)], time_limit)
    return "" if reply.get("score") == 1.0 else judge.fate(reply, time_limit)


def _check_rows(rows: list[dict]) -> None:
    check_references([row["answer"] for row in rows if "answer" in row])


math_correct.check_rows = _check_rows  # type: ignore[attr-defined]
Reward = Callable[..., list[float]]
