"""A second world of the experiments: sorting digits, by copying instead of adding.

    prompt     5213=
    careful    5;25;125;1235;#1235     one digit after another put in its place
    guess      #1325                   an immediate answer, neighbours often exchanged
    ramble     ?8;82;#2135             unrelated digits, often without an end

Tokens, fork token and interface are those of the arithmetic world. The careful habit
differs: it copies digits instead of adding numbers, and its length grows with the
square of the number of digits.
"""

import random
from typing import Annotated

from pydantic import Field

from refimpl.tasks.arithmetic import HabitWorld, Mix
from refimpl.validation import checked

Items = Annotated[int, Field(ge=2, le=8)]


@checked
class Sorting(HabitWorld):
    """A world of `min_items` to `max_items` digits to be sorted.

    The same digits in another order are another problem, so one order may be held out
    while another is trained on.
    """

    min_items: Items = 3
    max_items: Items = 6
    habit_mix: Mix = (0.30, 0.45, 0.25)

    purpose = "sort "

    def _problem(self, rng: random.Random) -> dict:
        size = rng.randint(self.min_items, self.max_items)
        items = rng.choices("0123456789", k=size)
        answer = "".join(sorted(items))
        return {"prompt": "".join(items) + "=", "answer": answer, "items": size}

    @staticmethod
    def careful(prompt: str, rng: random.Random | None = None) -> str:
        """'5213=' → '5;25;125;1235;#1235': the digits read so far, sorted, per step."""
        digits = prompt.rstrip("=")
        so_far = ["".join(sorted(digits[:n])) for n in range(1, len(digits) + 1)]
        return f"{';'.join(so_far)};#{so_far[-1]}"

    @staticmethod
    def guess(prompt: str, rng: random.Random) -> str:
        """'5213=' → '#1325': sorted, then neighbours exchanged with probability ½."""
        digits = sorted(prompt.rstrip("="))
        for i in range(len(digits) - 1):
            if rng.random() < 0.5:
                digits[i], digits[i + 1] = digits[i + 1], digits[i]
        return f"#{''.join(digits)}"

    @staticmethod
    def ramble(prompt: str, rng: random.Random) -> str:
        """'5213=' → '?8;82;…#2135': 2 to 9 strings of 1 to 3 digits, then a guess."""
        steps = ""
        for _ in range(rng.randint(2, 9)):
            steps += "".join(rng.choices("0123456789", k=rng.randint(1, 3))) + ";"
        return f"?{steps}{Sorting.guess(prompt, rng)}"
