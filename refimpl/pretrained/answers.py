"""Extract the answer from a language model's text, and compare it with the reference.

    The answer is 4 + 6 = 10.      whole: the text itself      last: 10

The reward functions have TRL's signature and need a column `answer`.
"""

import re
from collections.abc import Callable, Collection
from typing import Any, Literal

from refimpl.pretrained import judge
from refimpl.pretrained.extras import needed
from refimpl.validation import Positive, guarded

Extract = Literal["whole", "last", "tag"]
"""The part of a completion that is taken as its answer, see `extracted`."""
Reward = Callable[..., list[float]]

HABITS = ("bare", "equation", "sentence", "other")
MATHEMATICS: tuple[str, str, dict] = ("math_verify", "", {})
NUMBER = re.compile(
    r"(?:(?<![\w.])[-+])?(?<![\w.])"  # not inside a word; 3-4 has no sign
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?",
    re.ASCII,
)
LEAD = re.compile(r"\bis\b|[:=]")
PUNCTUATION = " \t\"'`*.,;:!?$()[]{}<>"
_DASHES = str.maketrans("\N{MINUS SIGN}\N{EN DASH}", "--")


@guarded
def extracted(completion: str, answer: Any, how: Extract = "whole") -> str:
    r"""Return the part of `completion` that is compared with the reference `answer`.

    - whole: all of it.
    - tag: the content of the last `<answer>…</answer>`, for prompts that ask for one.
      The opening tag may be missing, because some prompts end with it.
    - last: the end of the completion, or of its last tag or `\boxed{…}`, in the form of
      the reference. For a number this is the last number, without commas; for a word,
      the last word; for several lines, as many lines; for None, the last line. For
      anything else it is the text after the last `is`, `:` or `=` in the last line,
      unless the reference contains that as well. The fences of code blocks are left
      out, and so is punctuation at the ends that the reference does not have there.

    White space around the answer is removed, and so is a box around all of it. The
    result is an empty string if there is no such part.
    """
    text, reference = completion.strip(), str(answer).strip()
    if how == "tag" or (how == "last" and "</answer>" in text):
        before, closed, _ = text.rpartition("</answer>")
        text = before.rpartition("<answer>")[2].strip() if closed else ""
    box = _in_box(text)
    if box is not None and (how == "last" or text == rf"\boxed{{{box}}}"):
        text = box.strip()
    if how != "last":
        return text
    if NUMBER.fullmatch(reference):
        return ["", *numbers(text)][-1]
    lines = [line for line in text.splitlines() if not line.strip().startswith("```")]
    lines = "\n".join(lines).strip().splitlines()
    if "\n" in reference:
        return "\n".join(lines[-len(reference.splitlines()) :])
    last = "".join(lines[-1:]).strip()
    if answer is None or not last:
        return last
    if len(reference.split()) == 1:
        last = last.split()[-1]
    else:
        own = LEAD.findall(reference)
        leads = [lead.end() for lead in LEAD.finditer(last) if lead[0] not in own]
        last = last[[0, *leads][-1] :]
    return last.strip("".join({*PUNCTUATION} - {reference[:1], reference[-1:]}))


def _in_box(text: str) -> str | None:
    r"""Return the content of the last `\boxed{…}`; "" if it is never closed."""
    _, box, rest = text.rpartition(r"\boxed{")
    if not box:
        return None
    depth = 1
    for end, sign in enumerate(rest):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if depth == 0:
            return rest[:end]
    return ""


def numbers(text: str) -> list[str]:
    """Return the numbers in a text, without commas."""
    text = text.translate(_DASHES)
    return [number.replace(",", "") for number in NUMBER.findall(text)]


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
def math_correct(
    prompts: Any,
    completions: Collection[Any],
    *,
    answer: Collection[Any],
    time_limit: Positive = 2.0,
    **columns,
) -> list[float]:
    r"""Reward 1.0 where math-verify takes a completion for its reference, else 0.0.

    Completion and reference go to math-verify's `parse` and `verify` as they are, in a
    separate process. It reads LaTeX in `$…$`, `\[…\]` or `\boxed{…}`, so write a
    reference in LaTeX as `$\sqrt{2}$`. Where it finds no mathematics the reward is 0.
    Some of its verdicts are wrong; chapter 13 has six of them. An answer that takes
    more than `time_limit` seconds is wrong.

    Raises `UserError` if math-verify is missing (`pip install "refimpl[real]"`).
    """
    needed("math_verify")
    references = [str(right) for right in answer]
    return judge.scores(MATHEMATICS, completions, references, float(time_limit))
