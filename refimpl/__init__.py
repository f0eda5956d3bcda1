"""Policy-optimisation losses as their papers state them, on models you can train.

`loop.train` is the page to begin with: problems, responses, rewards, advantages, K
updates, hooks. What it calls is named after its step:

    problem → rollout → reward → advantage → batch → loss → K updates → history
    tasks     sampling  rewards  advantages  rollout algorithms loop    history

`algorithms` has one file per method. A loss is an objective times a weight
(`normalisers`). `options` turns the settings of a `TrainConfig` into the objects that
the loop works with. `pretrained` (real models) and `interop` (TRL, verl, the
conformance kit, the reader of logs) import this core, never the other way round.
"""

import sys

if sys.argv[:1] == ["-m"]:  # python -m refimpl: the imports below take seconds
    print("loading torch and transformers …", file=sys.stderr)

from refimpl import (
    advantages,
    corrections,
    curves,
    entropy,
    importance,
    kl,
    loss_terms,
    moe,
    normalisers,
    samplers,
    seeds,
    tasks,
    turns,
)
from refimpl.advantages import Scored
from refimpl.algorithms import ALGORITHMS, Objective, Tokens, get
from refimpl.config import TrainConfig
from refimpl.curves import curve
from refimpl.evaluation import evaluate
from refimpl.gate import from_gate
from refimpl.history import History
from refimpl.hooks import StalenessError
from refimpl.logprobs import log_probs
from refimpl.loop import collect, train, updates
from refimpl.options import prepare
from refimpl.sampling import sample
from refimpl.sft import WarmStart, warm_start
from refimpl.validation import UserError

__version__ = "0.3.0"
