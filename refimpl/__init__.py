"""Policy-optimisation losses as their papers state them, on models you can train.

The path of the data is one line, and the rooms are named after its steps:

    problem → rollout → reward → advantage → batch → loss → K updates → history
    tasks     sampling  rewards  advantages  collect algorithms train   history

`train.py` is the loop, on one page. No import runs upward, none in a circle. Floors,
lowest first:

1. The room `checks` (what is asked of a user's input), `seeds`, `cache`.
2. `importance`, `metrics`, `kl`, `corrections`, `advantages`, `normalisers`: the
   formulas of every loss. `config`.
3. `algorithms`: one file each. A loss is an objective times a weight. `curves`.
4. `tasks`, `models`, `batch`, `moe`, `routing` (of a mixture of experts), `decoding`,
   `sampling`, `reading`, `samplers` (that are not the policy), `rewards`: world and
   policy.
5. `terms` (of a loss), `sft`, `starts`, `history`, `samples`, `evaluation`, `run`,
   `descent`, `prepare`, `collect`, `hooks`; the room `keep` (how a run is kept, however
   it ends); and on top `train`, which alone opens that room, by one door.

Four more rooms stand beside this core, which runs without them: `shell` (the command
line), `real` (a pretrained model), `interop` (TRL, verl, the conformance kit), `lab`
(evidence and measurements). `__main__` opens the first of them.
Importing it changes nothing in the host process, and loads nothing: each name is
imported when it is first asked for, so that `--help` needs no torch.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refimpl import (
        advantages,
        corrections,
        curves,
        importance,
        kl,
        moe,
        normalisers,
        seeds,
        starts,
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
    from refimpl.reading import log_probs
    from refimpl.sampling import sample
    from refimpl.starts import WarmStart, warm_start
    from refimpl.train import train, updates

__version__ = "0.3.0"

_NAMES = {
    "advantages": "Scored",
    "algorithms": "ALGORITHMS Objective Tokens from_gate get",
    "checks": "UserError",
    "collect": "collect",
    "config": "TrainConfig",
    "curves": "curve",
    "evaluation": "evaluate",
    "history": "History",
    "hooks": "StalenessError",
    "prepare": "prepare",
    "sampling": "sample",
    "reading": "log_probs",
    "starts": "WarmStart warm_start",
    "train": "train updates",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOME)


class _Door(ModuleType):
    """This package: its names, and its modules, each loaded when it is asked for."""

    def __getattr__(self, name: str) -> Any:
        module = f"{__name__}.{_HOME.get(name, name)}"
        if name.startswith("_") or not find_spec(module):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        loaded = import_module(module)
        if name in _HOME:
            setattr(self, name, getattr(loaded, name))
        return self.__dict__[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in _HOME:  # `train` is the function
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Door
