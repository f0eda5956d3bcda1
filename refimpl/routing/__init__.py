"""Routing of a mixture of experts: recorded, replayed, disturbed and compared.

`recorder` watches a model's routers, `record` writes down which experts the tokens of a
rollout visited. A dense model never comes here; the formulas are in `refimpl.moe`.
"""

from refimpl.routing.record import (
    Drift,
    drift,
    load_balance,
    recorded,
    visited_again,
)
from refimpl.routing.recorder import (
    Routing,
    Visits,
    can_be_recorded,
    is_moe,
    routed,
    routers,
)

__all__ = ["Drift", "Routing", "Visits", "can_be_recorded", "drift", "is_moe"]
__all__ += ["load_balance", "recorded", "routed", "routers", "visited_again"]
