"""Worlds to train in. A task is any object with these five attributes:

- `sample(n, seed) -> list[dict]` and `held_out(n, seed=0)`: dataset rows with a
  `prompt` string; every other key is a column that the reward function receives.
- `reward(prompts, completions, **columns) -> list[float]`: TRL's signature.
- `habit(completion) -> str` and `habits`: labels whose shares are logged.

`arithmetic` is the course's own world, `sorting` a second one of the same kind.
`refimpl.pretrained` has the tasks of reasoning-gym, and chat templates.
"""

from refimpl.tasks.arithmetic import Arithmetic, make_tokenizer, rare_careful
from refimpl.tasks.sorting import Sorting
from refimpl.tasks.world import HabitWorld, Mix, TaskWarning, verify

__all__ = ["Arithmetic", "HabitWorld", "Mix", "Sorting", "TaskWarning"]
__all__ += ["make_tokenizer", "rare_careful", "verify"]
