"""Mixtures of experts: router weights, RSPO's shift, and records of routing.

`shift` holds the formulas. `recorder` records a model's routers during a forward pass,
and which experts the tokens of a rollout visited. Dense models do not use this package.
"""

from refimpl.models import is_moe, routers
from refimpl.moe.recorder import (
    BALANCE,
    Drift,
    Routing,
    can_be_recorded,
    load_balance,
    recorded,
    routed,
    visited_again,
)
from refimpl.moe.shift import (
    PLACEMENTS,
    Placement,
    overlap,
    router_shift,
    router_weights,
    shifted,
)

__all__ = ["BALANCE", "PLACEMENTS", "Drift", "Placement", "Routing"]
__all__ += ["can_be_recorded", "is_moe", "load_balance", "overlap"]
__all__ += ["recorded", "routed", "router_shift", "router_weights", "routers"]
__all__ += ["shifted", "visited_again"]
