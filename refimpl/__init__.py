"""Policy-optimisation losses as their papers state them, on models you can train.

The path of the data is one line, and the rooms are named after its steps:

    problem → rollout → reward → advantage → batch → loss → K updates → history
    tasks     rollout   rewards  advantages  collect algorithms update   history

No import runs upward, none in a circle. Floors, lowest first:

1. `settings` and `arguments` (which check themselves), `dice` (random numbers),
   `files`, `pretrained` (models that come in packages).
2. `importance`, `advantages`, `normalisers`, `kl`: the formulas of every loss.
3. `algorithms`: one file each. A loss is an objective times a weight. `curves`.
4. `tasks`, `models`, `moe`, `rollout`, `sharing` (of prompts), `scoring`, `rewards`,
   `sft`: world and policy; `starts/`: the policies that every machine begins with.
5. `collect` (makes a batch of all that), `update` (K steps on it), `evaluation`
   (held-out problems), `trainer` (the loop), with `config`, `run`, `history`,
   `samples` and `checkpoint` beside them.
6. `experiments`: stored evidence and measurements. `conformance`: cases for other
   implementations. `bridges`: the losses inside TRL and verl. `__main__`: the command
   line.

Importing it changes nothing in the host process. What only the notebooks use is in
`notebooks/course/`.
"""

from refimpl.algorithms import ALGORITHMS
from refimpl.config import TrainConfig
from refimpl.evaluation import evaluate
from refimpl.history import History
from refimpl.trainer import train

__version__ = "0.2.0"

__all__ = ["ALGORITHMS", "History", "TrainConfig", "evaluate", "train"]
