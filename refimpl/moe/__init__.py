"""Mixtures of experts: router weights, RSPO's shift, and a record of what routers did.

`shift` holds the formulas, `recorder` watches a model's routers, `record` writes down
which experts the tokens of a rollout visited. A dense model never comes here.
"""

from refimpl.moe.record import Drift, drift, load_balance, recorded, visited_again
from refimpl.moe.recorder import (
    Routing,
    Visits,
    can_be_recorded,
    is_moe,
    routed,
    routers,
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

__all__ = ["GAMMA_MIN", "PLACEMENTS", "Drift", "Placement", "Routing", "Visits"]
__all__ += ["can_be_recorded", "drift", "is_moe", "load_balance", "overlap"]
__all__ += ["recorded", "routed", "router_shift", "router_weights", "routers"]
__all__ += ["shifted", "visited_again"]
