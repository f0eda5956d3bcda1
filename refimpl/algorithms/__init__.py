"""The registry: every algorithm by name, in chapter order."""

from refimpl.algorithms.base import Algorithm, LossResult, Objective, Tokens
from refimpl.algorithms.cispo import CISPO
from refimpl.algorithms.dapo import DAPO
from refimpl.algorithms.dr_grpo import DR_GRPO
from refimpl.algorithms.gate import from_gate
from refimpl.algorithms.gmpo import GMPO
from refimpl.algorithms.grpo import GRPO
from refimpl.algorithms.gspo import GSPO
from refimpl.algorithms.gspo_token import GSPO_TOKEN
from refimpl.algorithms.ppo import PPO, value_loss
from refimpl.algorithms.reinforce import REINFORCE
from refimpl.algorithms.rspo import RSPO
from refimpl.algorithms.sapo import SAPO
from refimpl.settings import nearest

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        REINFORCE,
        PPO,
        GRPO,
        DR_GRPO,
        GSPO,
        GSPO_TOKEN,
        DAPO,
        CISPO,
        GMPO,
        RSPO,
        SAPO,
    )
}


def get(name: str) -> Algorithm:
    """The algorithm called `name`; `ValueError` with the nearest name if none is."""
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise ValueError(
            f"unknown algorithm {name!r}{nearest(name, ALGORITHMS)}; "
            f"one of: {', '.join(ALGORITHMS)}"
        )
    return ALGORITHMS[name]


def table() -> str:
    """Every method with what it changes in its parent, and its hyperparameters."""
    lines = []
    for a in ALGORITHMS.values():
        changed = f"{a.changed} (against {a.parent})" if a.parent else a.changed
        own = ", ".join(f"{name}={value}" for name, value in a.defaults.items())
        lines.append(f"  {a.name}: {changed}. {own or 'no hyperparameters'}")
    return "\n".join(lines)


__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "LossResult",
    "Objective",
    "Tokens",
    "from_gate",
    "get",
    "table",
    "value_loss",
]
