"""Corrections of a sampler that is not the policy which is trained on its tokens.

A rule looks at w = π_old / μ, μ the sampler's, or at π_θ / μ, where μ stands for π_old
(two policies), and makes a constant factor of a loss's `weight`; 0 drops the token.

| rule: bound | factor | called elsewhere |
|---|---|---|
| `token_truncate`: C | min(w, C) | TIS: TRL, verl, SkyRL, slime |
| `token_mask`: C or (α, β) | w, 0 outside | MIS; IcePop (2510.18855), 0.5 to 5 |
| `token_reject`: C or (α, β) | 1, 0 outside | verl's `token_k1`, SkyRL |
| `token_k3`: κ | 1, 0 where w − 1 − log w > κ | verl's K3-RS: `mean_k3`, 0.01 |
| `kpop`: φ | w, 0 where KL(π‖μ) or KL(μ‖π) > φ | KPop, 0.1: AReaL (#1405) |
| `opsm`: δ | 1, 0 where Â < 0 and mean log μ/π_θ > δ | DeepSeek-V3.2 (2512.02556) |

`sequence_…` has the product of w over a response for w (of k3 the sum), `mean_…` the
geometric mean: TRL's default is `sequence_mask` at 3, verl's Geo-RS `mean_reject`.
KPop's KLs are binary: of this token against all others. **Where engines differ:**
bounds are on w, as in TRL, SkyRL and AReaL; verl 0.9.1 has its `…_k1` on 1/w. OPSM goes
from the sampler to π_θ, as DeepSeek's and TRL's; slime's from π_old. A dropped token
stays in the average's denominator, as in TRL and IcePop; where verl, SkyRL and AReaL
*reject* one, they average over what is left.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from refimpl.checks import Positive, UserError, checker, guarded, refuse_unknown
from refimpl.importance import Mask, log_ratio, ratio, sequence_log_ratio
from refimpl.kl import binary

LEVELS = ("token", "sequence", "mean")
BAND = Positive | tuple[Positive, Positive]
ACTIONS = {"truncate": BAND, "mask": BAND, "reject": BAND, "k3": Positive}
RULES = {f"{level}_{act}": kind for level in LEVELS for act, kind in ACTIONS.items()}
RULES |= {"kpop": Positive, "opsm": Positive}  # and the type of a rule's bound
CHECKS = {name: checker(name, kind) for name, kind in RULES.items()}
WEIGHING = {name for name in RULES if name.endswith(("truncate", "mask", "kpop"))}
"""Those that multiply by w; the others only drop."""


@guarded
def check(rules: Mapping) -> dict[str, Any]:
    """`rules` as plain values. Raises `UserError` on one that cannot be meant."""
    refuse_unknown("corrections", rules, RULES)
    given = {name: CHECKS[name](bound) for name, bound in rules.items()}
    for name, bound in given.items():
        if isinstance(bound, tuple) and bound[0] >= bound[1]:
            raise UserError(f"{name} must be (lower, upper) bounds, got {bound}")
    if len(several := sorted(WEIGHING & given.keys())) > 1:
        raise UserError(f"{' and '.join(several)} each multiply by w: take one of them")
    return given


@torch.no_grad()
def factor(rules: Mapping, logp, sampler_logp, mask, advantages, now=None) -> Tensor:
    """(B, T): the product of what `rules` say. `logp`, nats, is the numerator of w;
    `opsm` asks for `advantages`, (B,) or (B, T), and log π_θ, `now` (None: `logp`)."""
    if "opsm" in (rules := check(rules)) and advantages is None:
        raise UserError("opsm drops tokens by their advantages: give these, too")
    z, now = log_ratio(logp, sampler_logp, mask), logp if now is None else now
    product = torch.ones_like(z)
    for name, bound in rules.items():
        if name == "kpop":
            far = binary(logp, sampler_logp).maximum(binary(sampler_logp, logp))
            kept = ratio(z) * inside(torch.where(mask.bool(), far, 0.0), bound)
        elif name == "opsm":
            left = sequence_log_ratio(log_ratio(now, sampler_logp, mask), mask)[:, None]
            bad = advantages.view(len(mask), -1) < 0
            kept = torch.where(bad, inside(-left, bound), 1.0)
        else:
            kept = by_level(name, z, mask, bound)
        product = product * kept
    return product


def by_level(name: str, z: Tensor, mask: Mask, bound: Any) -> Tensor:
    """A rule on w = e^z, of each token, (B, T), or of its whole response, (B, 1)."""
    level, action = name.split("_")
    x = ratio(z) - 1 - z if action == "k3" else z
    if level != "token":
        count = mask.sum(-1, keepdim=True).clamp(min=1) if level == "mean" else 1
        x = x.sum(-1, keepdim=True) / count
    if action == "k3":
        return inside(x, bound)
    if action == "truncate":
        return ratio(x).clamp(*(bound if isinstance(bound, tuple) else (0.0, bound)))
    return inside(ratio(x), bound) * (ratio(x) if action == "mask" else 1.0)


def inside(x: Tensor, bound: float | tuple[float, float]) -> Tensor:
    """1 inside the bounds, 0 outside; a single one is the upper."""
    low, high = bound if isinstance(bound, tuple) else (-torch.inf, bound)
    return ((x >= low) & (x <= high)).to(x)
