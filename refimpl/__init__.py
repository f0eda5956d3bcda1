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

import lazy_loader

__version__ = "0.3.0"

# The names in `__init__.pyi`. Each is imported when it is first used, so that a loss
# alone waits for torch and not for transformers. EAGER_IMPORT=1 imports all at once.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
