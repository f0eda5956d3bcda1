"""RSPO: Router-Shift Policy Optimization (2510.23027), for mixtures of experts.

    J = (1/G) Σ_i Â_i exp( (1/|o_i|) Σ_t z'_{i,t} ),    z' = z + log γ, then clipped
    γ = sg[ max( exp(−mean |Δ log router probability|), γ_min ) ]

**Changed against GMPO:** each ratio is multiplied by γ ≤ 1, which measures how far the
token's routers have moved away from the experts that the old policy activated
(`refimpl.moe.router_shift`). Where routing drifts, the update is smaller. In a
geometric mean one token's γ scales its *whole response*.

**Placement.** Version 2 of the paper rescales the ratios "prior to clipping and
aggregation", which is `placement="before_clip"`. With `"after_clip"`, J is multiplied
by the geometric mean of γ instead. Both are in `refimpl.moe.shifted`, because router
shift works with any method (the paper: GRPO and GSPO). It changes an argument of the
loss, either π_old or the weight, and no loss needs code for it. RSPO only turns it on.

**Departures.** K, γ_min and the bounds are not published. K is the model's own top-k,
γ_min is 0.7 as in a public copy of the code, ±0.4 is GMPO's. γ_t is taken at the
position where π(o_t|·) is computed, that of the preceding token. With γ ≡ 1, or without
the shift, RSPO is exactly GMPO.
"""

from refimpl.algorithms.gmpo import GMPO

RSPO = GMPO.child(
    name="rspo",
    title="RSPO",
    paper="Zhang et al. 2025, 2510.23027",
    changed="ratios shrink where the MoE's routers have drifted",
    training={"router_shift": True},
)
