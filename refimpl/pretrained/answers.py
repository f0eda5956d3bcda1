"""Extract the answer from a language model's text, and compare it with the reference.

    The answer is 4 + 6 = 10.      whole: the text itself      last: 10

The reward functions have TRL's signature and need a column `answer`.
"""

import re
from collections.abc import Callable, Collection
from typing import Any, Literal

from refimpl.pretrained import judge, notation
from refimpl.pretrained.extras import needed
from refimpl.validation import Positive, UserError, guarded, shown

Extract = Literal["whole", "last", "tag"]
"""The part of a completion that is taken as its answer, see `extracted`."""

HABITS = ("bare", "equation", "sentence", "other")
MATHEMATICS: tuple[str, str, dict] = ("math_verify", "", {})
_is_text: dict[str, bool] = {}
"""Whether each reference is compared as a text."""


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
        boxed = notation.in_boxes(text)[0] if text.startswith("\\boxed") else None
        return boxed if boxed and text.endswith("}") else text
    (text, is_marked), reference = notation.final(text), str(answer).strip()
    if not is_marked and "\n" not in reference:
        text = notation.affirmed(text, reference)
    if notation.NUMBER.fullmatch(reference):
        numbers = notation.numbers(text, reference)
        return numbers[-1] if numbers else ""
    lines = [line for line in text.splitlines() if not line.strip().startswith("```")]
    last = "\n".join(lines[-len(reference.splitlines()) :])
    if answer is None or not text or "\n" in reference:
        return last if "\n" in reference else last.strip()
    around = notation.STOPS
    if len(reference.split()) == 1 and text.split():
        last, around = text.split()[-1], around + notation.BRACKETS
    else:  # a lead such as `is`, unless the reference has it
        leads = [
            m for m in notation.LEAD.finditer(last) if m[0].strip() not in reference
        ]
        last = last[leads[-1].end() if leads else 0 :]
    return last.strip("".join({*around} - {reference[:1], reference[-1:]}))


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
    """Reward 1.0 if the text contains the right answer: lenient, and easily fooled.

    A completion that lists all numbers always gets the reward, which is chapter 13's
    example of reward hacking. Numbers are compared by value, so that 1,000 equals
    1000.0. Only the end of a long text is searched.
    """
    return [
        float(isinstance(text, str) and _contains(text, str(right).strip()))
        for text, right in zip(completions, answer, strict=True)
    ]


def _contains(text: str, right: str) -> bool:
    text = text[-judge.MAX_ANSWER_CHECKED :]
    if notation.NUMBER.fullmatch(right):
        return _value(right) in map(_value, notation.numbers(text, right))
    return bool(right) and right in text


def _value(number: str) -> float | str:
    return number if "^" in number else float(number.replace(",", ""))


@guarded
def math_correct(
    prompts: Any,
    completions: Collection[Any],
    *,
    answer: Collection[Any],
    time_limit: Positive = 2.0,
    **columns,
) -> list[float]:
    """Reward 1.0 where the final answer equals the reference as mathematics, else 0.0.

    The final answer is in the last `<answer>…</answer>`, in the last `\\boxed{…}` (or
    boxes, if *and*, *or* or a comma joins them), after `answer is`, or else at the end.
    It is compared by math-verify: `1/2`, `0.5`, `½` and `\\frac{1}{2}` are equal. Words
    and choices (`Monday`, `(D) Marta`), and whatever math-verify cannot read, are
    compared as texts. An answer that takes more than `time_limit` seconds is wrong.

    Like math-verify, this function forgives units, the order of a list, and a decimal
    within 1e-6 of a fraction. It does not forgive another base (4210_5 or 4210 for
    4210_7), nor an equation in unknowns for its right side (x² + y² = 1 for 1).

    Raises `UserError` if no answer could match a reference, naming its row, or if
    math-verify is not installed (`pip install "refimpl[real]"`).
    """
    check_references(answer, float(time_limit))
    references = [_reference(right) for right in answer]
    read = [
        _read(text, reference) if isinstance(text, str) else 0.0
        for text, reference in zip(completions, references, strict=True)
    ]
    gold = [_gold(reference) for reference in references]
    scores = judge.scores(MATHEMATICS, read, gold, float(time_limit))
    return [x if isinstance(x, float) else y for x, y in zip(read, scores)]


def _read(completion: str, reference: str) -> float | str:
    """Return the score if comparing texts decides it, else the text for math-verify."""
    text, is_marked = notation.final(completion)
    text = notation.english(text[-judge.MAX_ANSWER_CHECKED :], reference)
    if not is_marked:
        text = notation.affirmed(text, reference)
    if _is_text[reference]:
        return float(notation.says(text, reference, is_marked))
    return notation.mathematics(text, reference, is_marked)


def _reference(answer: Any) -> str:
    """Strip a reference of a tag, words before its `$`, and a full stop after it."""
    text = str(answer).strip()
    text = (notation.in_tag(text) or text).removeprefix("####").strip()
    text = re.sub(r"^\\[(\[](.*)\\[)\]][.,]?$", r"\1", text, flags=re.S).strip()
    if text.count("$") >= 2:
        text = re.sub(r"^[\w\s]*(?::|\bis\b)\s*(?=\$)|(?<=\$)\s*[.,;:]+$", "", text)
    return text


def _gold(reference: str) -> str:
    return reference if r"\boxed" in reference else notation.formula(reference)


def check_references(answer: Collection[Any], time_limit: float = 2.0) -> None:
    """Read each reference. Raises `UserError` at the first that no answer could match.

    A run checks the references of its first rows before it begins. Call this function
    to check a whole data set.
    """
    needed("math_verify")
    for row, right in enumerate(answer):
        reference = _reference(right)
        if reference in _is_text:
            continue
        whole = re.search(r"[\w∞∅].*(?<![-+*/^_=<\\])$", reference, re.S)
        if not whole or reference.count("{") > reference.count("}"):
            raise UserError(
                f"the reference in row {row}, {shown(right)}, cannot be compared: "
                "it is empty or cut off; mend that row or leave it out, or judge it by "
                "a reward function of your own"
            )
        own = notation.mathematics(reference, reference, True)
        _is_text[reference] = _as_text(reference) or not judge.verdict(
            MATHEMATICS, own, _gold(reference), time_limit
        ).get("score")


def _as_text(reference: str) -> bool:
    """True for words, letters, choices such as (1)(3), and dates."""
    several = re.fullmatch(r"(?:\(\d\d?\)){2,}|\d+([-/])\d+\1\d+", reference)
    choice = notation.CHOICE.match(reference)
    mathematics = re.search(r"\$|\\boxed", reference) or notation.is_formula(reference)
    return bool(several or choice or not mathematics)


math_correct.check_rows = lambda rows: check_references(  # type: ignore[attr-defined]
    [row["answer"] for row in rows if "answer" in row]
)
Reward = Callable[..., list[float]]
