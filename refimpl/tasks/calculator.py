"""A world with a tool: sums, and a calculator that adds two numbers.

    prompt     3+9+4=
    call       [3+9] =12; [12+4] =16; #16      one call for each further term
    guess      #14                             an immediate answer, usually wrong
    fault      [3+8] =11; [11+4] =15; #15      a wrong operand, a missing one, or an end
                                               one term too early

The policy writes `[3+9]`, and the environment inserts `=12;`, or `=?;` after anything
that is not a call. So n terms need n turns. The first character of a response is a fork
(`[` or `#`), and so is the first one after each observation. `max_turns=7` allows for
all calls, with two to spare.
"""

import random
import re

from refimpl.tasks.arithmetic import CHARACTERS, Arithmetic, Mix, Terms
from refimpl.validation import checked

CALL = re.compile(r"\[([0-9]{1,2})\+([0-9]{1,2})\]")


def terms_of(prompt: str) -> list[int]:
    return [int(term) for term in prompt.rstrip("=").split("+")]


def paid(prompts, completions, *, answer, **columns) -> list[float]:
    """Reward 1.0 if the policy's own text after its last call is `#` and the sum.

    Only one `#` is allowed in all. `completions` lack what the environment wrote.
    """
    ends = [str(text).rpartition("]") for text in completions]
    return [
        float(end == f"#{a}" and "#" not in calls)
        for (calls, _, end), a in zip(ends, answer, strict=True)
    ]


@checked
class Calculator(Arithmetic):
    """A world of sums with a calculator, for `min_terms` to `max_terms` digits.

    `habit_mix`: the shares of call, guess and fault after the warm start. `fault_mix`:
    of the faults, the shares of slip (one operand is replaced), early (the last term is
    left out) and broken (an operand is missing, then a guess).
    """

    min_terms: Terms = 3
    max_terms: Terms = 5
    habit_mix: Mix = (0.20, 0.35, 0.45)
    fault_mix: Mix = (0.45, 0.33, 0.22)

    purpose = "calculator "
    characters = CHARACTERS + "[]"
    habits = ("call", "guess", "fault")
    reward = staticmethod(paid)

    @staticmethod
    def habit(completion: str) -> str:
        """Name the habit that a text shows. A slip or an early end counts as call."""
        if completion.startswith("#"):
            return "guess"
        calls = completion.rpartition("]")[0] + "]"
        return "call" if re.fullmatch(f"(?:{CALL.pattern})+", calls) else "fault"

    @staticmethod
    def observe(text: str) -> str | None:
        """Answer a turn that ends in `]`: '[3+9]' → '=12;', '[3+]' → '=?;'."""
        if not (text.endswith("]") and "[" in text):
            return None
        call = CALL.fullmatch(text[text.rindex("[") :])
        return f"={int(call[1]) + int(call[2])};" if call else "=?;"

    @staticmethod
    def progress(prompt: str, turns: list[str]) -> float:
        """Return the share of terms added correctly so far; 0 after a wrong turn."""
        right = Calculator.call(prompt)
        return len(turns) / len(right) if turns == right[: len(turns)] else 0.0

    @staticmethod
    def call(prompt: str, rng: random.Random | None = None) -> list[str]:
        """'3+9+4=' → ['[3+9]', '[12+4]', '#16']."""
        total, *rest = terms_of(prompt)
        turns = []
        for term in rest:
            turns.append(f"[{total}+{term}]")
            total += term
        return [*turns, f"#{total}"]

    def fault(self, prompt: str, rng: random.Random) -> list[str]:
        """Make a slip, an early end, or a broken call, in the shares of `fault_mix`."""
        terms = terms_of(prompt)
        kind = rng.choices(("slip", "early", "broken"), self.fault_mix)[0]
        if kind == "broken":
            a, b = terms[:2]
            broken = rng.choice([f"[{a}+]", f"[+{b}]", f"[{a}]"])
            return [broken, self.guess(prompt, rng)]
        if kind == "early":
            terms.pop()
        else:
            terms[rng.randrange(1, len(terms))] = rng.randrange(10)
        return self.call("+".join(map(str, terms)))
