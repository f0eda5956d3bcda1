"""Mixtures of experts: router weights, RSPO's shift, and records of routing.

`shift` holds the formulas, `recorder` records a model's routers during a forward pass,
`record` stores which experts the tokens of a rollout visited. Dense models do not use
this package.
"""

from refimpl.models import is_moe, routers
from refimpl.moe.record import (
    BALANCE,
    Drift,
    load_balance,
    recorded,
    visited_again,
)
from refimpl.moe.recorder import (
    Routing,
    Visits,
    can_be_recorded,
    routed,
)
from refimpl.moe.shift import (
    GAMMA_MIN,
    PLACEMENTS,
    Placement,
    overlap,
    router_shift,
    router_weights,
    shifted,
)

__all__ = [
    "BALANCE",
    "GAMMA_MIN",
    "PLACEMENTS",
    "Drift",
    "Placement",
    "Routing",
    "Visits",
]
__all__ += ["can_be_recorded", "is_moe", "load_balance", "overlap"]
__all__ += ["recorded", "routed", "router_shift", "router_weights", "routers"]
__all__ += ["shifted", "visited_again"]
