"""The registry: every algorithm by name, in chapter order."""

from refimpl.algorithms.base import (
    Algorithm,
    LossInputs,
    LossResult,
    Objective,
    Tokens,
)
from refimpl.algorithms.cispo import CISPO
from refimpl.algorithms.dapo import DAPO
from refimpl.algorithms.dppo_kl import DPPO_KL
from refimpl.algorithms.dppo_tv import DPPO_TV
from refimpl.algorithms.dr_grpo import DR_GRPO
from refimpl.algorithms.dro import DRO
from refimpl.algorithms.flash_reinforce import FLASH_REINFORCE
from refimpl.algorithms.glm5 import GLM5
from refimpl.algorithms.gmpo import GMPO
from refimpl.algorithms.grpo import GRPO
from refimpl.algorithms.gspo import GSPO
from refimpl.algorithms.gspo_token import GSPO_TOKEN
from refimpl.algorithms.ipo import IPO
from refimpl.algorithms.kimi import KIMI
from refimpl.algorithms.luspo import LUSPO
from refimpl.algorithms.minirl import MINIRL
from refimpl.algorithms.ppo import PPO, value_loss
from refimpl.algorithms.reinforce import REINFORCE
from refimpl.algorithms.rspo import RSPO
from refimpl.algorithms.sao import SAO
from refimpl.algorithms.sapo import SAPO
from refimpl.algorithms.vespo import VESPO
from refimpl.validation import UserError, nearest

_METHODS = (
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
    DPPO_TV,
    DPPO_KL,
    IPO,
    GLM5,
    SAO,
    FLASH_REINFORCE,
    VESPO,
    LUSPO,
    MINIRL,
    DRO,
    KIMI,
)


class Registry(dict[str, Algorithm]):
    """Algorithms by name. An unknown name raises `UserError` with the nearest one."""

    def __missing__(self, name: str):
        raise UserError(
            f"unknown algorithm {name!r}{nearest(name, self)}; one of: "
            f"{', '.join(self)}"
        )


ALGORITHMS = Registry({method.name: method for method in _METHODS})


def get(name: str) -> Algorithm:
    """Return the algorithm called `name`. Raises `UserError` if there is none."""
    return ALGORITHMS[name]


__all__ = ["ALGORITHMS", "Algorithm", "LossInputs", "LossResult", "Objective"]
__all__ += ["Tokens", "get", "value_loss"]
