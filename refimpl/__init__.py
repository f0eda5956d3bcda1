"""Policy-optimisation losses as their papers state them, on models you can train.

The path of the data is one line, and the rooms are named after its steps:

    problem → rollout → reward → advantage → batch → loss → K updates → history
    tasks     sampling  rewards  advantages  collect algorithms train   history

`train.py` is the loop, on one page. No import runs upward, none in a circle. Floors,
lowest first:

1. `checks` (what is asked of a user's input), `seeds`, `files`.
2. `importance`, `corrections`, `advantages`, `normalisers`, `kl`: the formulas of
   every loss. `config`.
3. `algorithms`: one file each. A loss is an objective times a weight. `curves`.
4. `tasks`, `models`, `batch`, `moe`, `decoding`, `sampling`, `scoring`, `samplers`
   (that are not the policy), `rewards`: world and policy.
5. `terms` (of a loss), `sft`, `starts`, `history`, `evaluation`, `run`, `prepare`,
   `collect`, `checkpoint`, `hooks`, and `train` on top.

Five rooms stand beside this core, which runs without them: `engine` (samples faster,
through a door that is opened here), `shell` (the command line), `real` (a pretrained
model), `interop` (TRL, verl, the conformance kit), `lab` (evidence and measurements).
`__main__` opens the second of them.
Importing it changes nothing in the host process.
"""

from refimpl import (
    advantages,
    curves,
    engine,
    importance,
    kl,
    moe,
    normalisers,
    seeds,
    tasks,
)
from refimpl.advantages import Scored
from refimpl.algorithms import ALGORITHMS, Objective, Tokens, from_gate, get
from refimpl.checks import UserError
from refimpl.collect import collect
from refimpl.config import TrainConfig
from refimpl.curves import curve
from refimpl.evaluation import evaluate
from refimpl.history import History
from refimpl.hooks import StalenessError
from refimpl.prepare import prepare
from refimpl.sampling import sample
from refimpl.scoring import log_probs
from refimpl.starts import WarmStart, warm_start
from refimpl.train import train, updates

__version__ = "0.3.0"
