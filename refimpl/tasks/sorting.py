"""A second world: sorting digits, by copying instead of adding.

    prompt     5213=
    careful    5;25;125;1235;#1235     one digit after the other put in its place
    guess      #1325                   an answer at once, neighbours often exchanged
    ramble     ?8;82;#2135             digits about nothing, often without end

Tokens, fork token and interface are those of the arithmetic world. What the careful
habit does is another thing: nothing is added up, everything is copied, and the working
grows with the square of the problem.
"""

import random
import re
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field

from refimpl.checks import UserError, checked, guarded
from refimpl.tasks.arithmetic import MAX_RESPONSE_CHECKED
from refimpl.tasks.world import HabitWorld, Mix

Items = Annotated[int, Field(ge=2, le=8)]

_ANSWER = re.compile(r"[^#]*#([0-9]{1,8})", re.ASCII)


def verify_sorted(response: str, answer: str) -> bool:
    """True if `response` ends in one `#`, then exactly the digits of `answer`.

    Matched, never evaluated, in linear time; anything malformed is simply wrong.
    """
    if not isinstance(response, str) or len(response) > MAX_RESPONSE_CHECKED:
        return False
    match = _ANSWER.fullmatch(response)
    return match is not None and match.group(1) == answer


@guarded
def sortedness(
    prompts: Any, completions: Collection[Any], *, answer: Collection[str], **columns
) -> list[float]:
    """Reward 1.0 for the digits in order, else 0.0. TRL's reward signature."""
    return [
        float(verify_sorted(c, a)) for c, a in zip(completions, answer, strict=True)
    ]


@checked
class Sorting(HabitWorld):
    """A world of `min_items` to `max_items` digits to be put in order.

    `habit_mix` and the eighth of the problems that is held out: as `Arithmetic`'s. The
    same digits in another order are another problem, and may be among the training's.
    """

    min_items: Items = 3
    max_items: Items = 6
    habit_mix: Mix = (0.30, 0.45, 0.25)

    purpose = "sort "
    reward = staticmethod(sortedness)

    def __post_init__(self):
        if self.min_items > self.max_items:
            raise UserError(
                f"min_items {self.min_items} is above max_items {self.max_items}"
            )

    def _problem(self, rng: random.Random) -> dict:
        size = rng.randint(self.min_items, self.max_items)
        items = rng.choices("0123456789", k=size)
        answer = "".join(sorted(items))
        return {"prompt": "".join(items) + "=", "answer": answer, "items": size}

    def _demonstrated(self, kind: str, prompt: str, rng: random.Random) -> str:
        return _DEMONSTRATE[kind](prompt, rng)


def careful_sorting(prompt: str, rng: random.Random | None = None) -> str:
    """'5213=' → '5;25;125;1235;#1235': after each digit, all so far in order."""
    digits = prompt.rstrip("=")
    so_far = ["".join(sorted(digits[:n])) for n in range(1, len(digits) + 1)]
    return f"{';'.join(so_far)};#{so_far[-1]}"


def guess_sorting(prompt: str, rng: random.Random) -> str:
    """'5213=' → '#1325': in order, but each pair of neighbours exchanged by a coin."""
    digits = sorted(prompt.rstrip("="))
    for i in range(len(digits) - 1):
        if rng.random() < 0.5:
            digits[i], digits[i + 1] = digits[i + 1], digits[i]
    return f"#{''.join(digits)}"


def ramble_sorting(prompt: str, rng: random.Random) -> str:
    """'5213=' → '?8;82;…#2135': 2 to 9 strings of 1 to 3 digits, then a guess."""
    steps = ""
    for _ in range(rng.randint(2, 9)):
        steps += "".join(rng.choices("0123456789", k=rng.randint(1, 3))) + ";"
    return f"?{steps}{guess_sorting(prompt, rng)}"


_DEMONSTRATE = {
    "careful": careful_sorting,
    "guess": guess_sorting,
    "ramble": ramble_sorting,
}
