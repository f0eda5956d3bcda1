"""Worlds to train in. A task is any object with these attributes:

- `sample(n, seed) -> list[dict]` and `held_out(n, seed=0)`: dataset rows with a
  `prompt` string; every other key is a column that the reward function receives.
- `reward(prompts, completions, **columns) -> list[float]`: TRL's signature.
- `habit(completion) -> str` and `habits`: labels whose shares are logged.

A task in which answers have several turns, as with tools, also has:

- `observe(text) -> str | None`: called after every token with what the policy has
  written in this turn. A string is the environment's answer: it is inserted, the policy
  reads it, and a new turn begins. None: the turn goes on.
- `progress(prompt, turns) -> float`, optional: the score of the state after these
  turns, for `refimpl.turns.state_differences`.

The `completions` that a reward receives hold what the policy wrote, without what the
environment inserted.

`arithmetic` is the course's own world, and `calculator` one with a tool.
`refimpl.pretrained` has the tasks of reasoning-gym, and chat templates.
"""

from refimpl.tasks.arithmetic import (
    HABITS,
    Arithmetic,
    HabitWorld,
    Mix,
    TaskWarning,
    habit,
    make_tokenizer,
    rare_careful,
    verify,
)
from refimpl.tasks.calculator import Calculator

__all__ = ["HABITS", "Arithmetic", "Calculator", "HabitWorld", "Mix", "TaskWarning"]
__all__ += ["habit", "make_tokenizer", "rare_careful", "verify"]
