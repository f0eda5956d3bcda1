"""The registry: every algorithm by name, in chapter order."""

from refimpl.algorithms.base import Algorithm, LossResult, Objective, nearest
from refimpl.algorithms.grpo import GRPO
from refimpl.algorithms.ppo import PPO, value_loss
from refimpl.algorithms.reinforce import REINFORCE

ALGORITHMS: dict[str, Algorithm] = {a.name: a for a in (REINFORCE, PPO, GRPO)}


def get(name: str) -> Algorithm:
    """The algorithm called `name`; `ValueError` with the nearest name if none is."""
    if name not in ALGORITHMS:
        raise ValueError(
            f"unknown algorithm {name!r}{nearest(name, ALGORITHMS)}; "
            f"one of: {', '.join(ALGORITHMS)}"
        )
    return ALGORITHMS[name]


__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "LossResult",
    "Objective",
    "get",
    "value_loss",
]
