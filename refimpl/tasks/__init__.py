"""Worlds to train in. A task is any object with these five:

- `sample(n, seed) -> list[dict]` and `held_out(n, seed=0)`: dataset rows with a
  `prompt` string; every other key is a column that the reward function receives.
- `reward(prompts, completions, **columns) -> list[float]`: TRL's signature.
- `habit(completion) -> str` and `habits`: labels whose shares are logged.
"""

from refimpl.tasks.arithmetic import (
    Arithmetic,
    Mix,
    make_tokenizer,
    rare_careful,
    verify,
)

__all__ = ["Arithmetic", "Mix", "make_tokenizer", "rare_careful", "verify"]
