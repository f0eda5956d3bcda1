"""The arithmetic world: sums of single digits, three habits, one exact verifier.

    prompt     3+9+4=
    careful    3+9=12;12+4=16;#16      every step written out
    guess      #14                     an immediate answer, usually wrong
    ramble     ?8+2=10;4+4=8;#12       steps of unrelated sums, often without an end

The first character of a response shows its habit: `#` means guess, `?` means ramble, a
digit means careful. It is the **fork token**: a single choice that decides the reward.
"""

import random
from typing import Annotated

from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from refimpl.tasks.world import CHARACTERS, HabitWorld, Mix
from refimpl.validation import UserError, checked

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
    vocabulary = ["<pad>", "<eos>", "<unk>", *characters]
    tokenizer = Tokenizer(
        models.WordLevel({t: i for i, t in enumerate(vocabulary)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=128,
    )
