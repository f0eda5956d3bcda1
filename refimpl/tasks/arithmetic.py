"""The arithmetic world: sums of single digits, three habits, one exact verifier.

    prompt     3+9+4=
    careful    3+9=12;12+4=16;#16      every step written out
    guess      #14                     an immediate answer, usually wrong
    ramble     ?8+2=10;4+4=8;#12       steps of unrelated sums, often without an end

The first character of a response shows its habit: `#` means guess, `?` means ramble, a
digit means careful. It is the **fork token**: a single choice that decides the reward.
"""

import random
import zlib
from collections.abc import Collection
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from refimpl.seeds import salted
from refimpl.validation import Count, Seed, Share, UserError, checked, guarded

HABITS = ("careful", "guess", "ramble")
CHARACTERS = "0123456789+=;#?"


class TaskWarning(UserWarning):
    """A task or its scorer does something that a user should know about."""


def habit(completion: str) -> str:
    """Name the habit that the first character shows; 'other' if it shows none."""
    if completion[:1].isdigit():
        return "careful"
    return {"#": "guess", "?": "ramble"}.get(completion[:1], "other")


@guarded
def verify(response: Any, answer: int | str) -> bool:
    """True if `response` ends in one `#`, then exactly `answer`.

    Only one `#` is allowed, so that a list of all answers earns nothing. Leading zeros,
    and text after the answer, make it wrong. The response is compared, never evaluated;
    a response that is not a string is wrong.
    """
    if not isinstance(response, str):
        return False
    _, mark, given = response.partition("#")
    return mark + given == f"#{answer}"


@guarded
def correctness(
    prompts: Any, completions: Collection[Any], *, answer: Collection[Any], **columns
) -> list[float]:
    """Reward 1.0 for a verified answer, else 0.0, with TRL's reward signature."""
    return [float(verify(c, a)) for c, a in zip(completions, answer, strict=True)]


def _whole(mix: tuple[float, ...]) -> tuple[float, ...]:
    if abs(sum(mix) - 1) > 1e-6:
        raise ValueError
    return mix


Mix = Annotated[tuple[Share, Share, Share], AfterValidator(_whole), "that add up to 1"]
"""Shares of a world's three habits: careful, guess and ramble."""


class HabitWorld:
    """Problems with an exact answer, and three habits of answering them.

    A world is a dataclass that inherits from this class. Its `_problem` draws a problem
    (a row with `prompt` and `answer`). For each habit it has a method of that name,
    called with (prompt, rng), which returns a completion in this habit; in a world that
    answers (`observe`), this may be a list of the policy's turns. One problem in eight
    (by a hash of its prompt) is held out: it is in no warm start and no rollout, and
    only `held_out` returns it.
    """

    purpose: ClassVar[str] = ""
    """A prefix of each seed's purpose, so that two worlds draw different numbers."""
    habit = staticmethod(habit)
    habits: ClassVar[tuple[str, ...]] = HABITS
    characters: ClassVar[str] = CHARACTERS
    """The tokens of `make_tokenizer`, in addition to `<pad>`, `<eos>` and `<unk>`."""
    reward = staticmethod(correctness)
    habit_mix: Mix
    """The shares of the habits after the warm start."""

    def _problem(self, rng: random.Random) -> dict:
        """Draw a problem as a row with `prompt` and `answer`."""
        raise NotImplementedError

    @guarded
    def sample(self, n: Count, seed: Seed) -> list[dict]:
        """Draw n training problems as dataset rows."""
        return self._draw(n, self._random("train", seed), held_out=False)

    @guarded
    def held_out(self, n: Count, seed: Seed = 0) -> list[dict]:
        """Draw n problems that are never trained on."""
        return self._draw(n, self._random("test", seed), held_out=True)

    @guarded
    def demonstrations(
        self, n: Count, seed: Seed, mix: Mix | None = None
    ) -> list[dict]:
        """Draw n training problems, each with a `completion` in a habit from `mix`."""
        rng = self._random("demonstrations", seed)
        rows = self._draw(n, rng, held_out=False)
        chosen = rng.choices(self.habits, weights=mix or self.habit_mix, k=n)
        for row, kind in zip(rows, chosen, strict=True):
            row["completion"] = getattr(self, kind)(row["prompt"], rng)
        return rows

    def _draw(self, n: int, rng: random.Random, held_out: bool) -> list[dict]:
        rows: list[dict] = []
        while len(rows) < n:
            row = self._problem(rng)
            if (zlib.crc32(row["prompt"].encode()) % 8 == 0) == held_out:
                rows.append(row)
        return rows

    def _random(self, purpose: str, seed: int) -> random.Random:
        return random.Random(f"{self.purpose}{purpose} {salted(seed)}")


Terms = Annotated[int, Field(ge=2, le=9)]


@checked
class Arithmetic(HabitWorld):
    """A world of sums with `min_terms` to `max_terms` digits.

    `habit_mix`: the shares of careful, guess and ramble after the warm start.
    """

    min_terms: Terms = 2
    max_terms: Terms = 5
    habit_mix: Mix = (0.30, 0.45, 0.25)

    def __post_init__(self):
        if self.min_terms > self.max_terms:
            raise UserError(
                f"min_terms {self.min_terms} is above max_terms {self.max_terms}"
            )

    def _problem(self, rng: random.Random) -> dict:
        count = rng.randint(self.min_terms, self.max_terms)
        terms = rng.choices(range(10), k=count)
        prompt = "+".join(map(str, terms)) + "="
        return {"prompt": prompt, "answer": sum(terms), "terms": count}

    @staticmethod
    def careful(prompt: str, rng: random.Random | None = None) -> str:
        """'3+9+4=' → '3+9=12;12+4=16;#16'."""
        total, *rest = map(int, prompt.rstrip("=").split("+"))
        steps = ""
        for term in rest:
            steps += f"{total}+{term}={total + term};"
            total += term
        return f"{steps}#{total}"

    @staticmethod
    def guess(prompt: str, rng: random.Random) -> str:
        """'3+9+4=' → '#14': the right sum plus rounded normal noise of sd 4."""
        total = sum(map(int, prompt.rstrip("=").split("+")))
        return f"#{max(0, total + round(rng.gauss(0, 4)))}"

    @staticmethod
    def ramble(prompt: str, rng: random.Random) -> str:
        """'3+9+4=' → '?8+2=10;4+4=8;…#12': 2 to 9 unrelated steps, then a guess."""
        steps = ""
        for _ in range(rng.randint(2, 9)):
            a, b = rng.randrange(10), rng.randrange(10)
            steps += f"{a}+{b}={a + b};"
        return f"?{steps}{Arithmetic.guess(prompt, rng)}"


def rare_careful() -> Arithmetic:
    """Make the world in which careful starts at 2 %, so that exploration decides."""
    return Arithmetic(habit_mix=(0.02, 0.49, 0.49))


def make_tokenizer(characters: str = CHARACTERS) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token per character, `<pad>`, `<eos>` and `<unk>`."""
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    vocabulary = [*special.values(), *characters]
    tokenizer = Tokenizer(
        models.WordLevel({t: i for i, t in enumerate(vocabulary)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, padding_side="left", model_max_length=128, **special
    )
