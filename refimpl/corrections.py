"""Corrections for a sampler that differs from the policy trained on its tokens.

A rule computes a constant factor for the `weight` of a loss; 0 drops the token. The
factor depends on w = π_old / μ with the sampler's μ, or on w = π_θ / μ if μ stands for
π_old (two policies).

| rule: bound | factor | called elsewhere |
|---|---|---|
| `token_truncate`: C | min(w, C) | TIS: TRL, verl, SkyRL, slime |
| `token_mask`: C or (α, β) | w, 0 outside | MIS; IcePop (2510.18855), 0.5 to 5 |
| `token_reject`: C or (α, β) | 1, 0 outside | verl's `token_k1`, SkyRL |
| `token_k3`: κ | 1, 0 where w − 1 − log w > κ | verl's K3-RS: `mean_k3`, 0.01 |
| `token_kl`: δ | 1, 0 where KL(μ‖π) > δ | FlashREINFORCE: `mean_kl`, 0.003 |
| `kpop`: φ | w, 0 where KL(π‖μ) or KL(μ‖π) > φ | KPop, 0.1: AReaL (#1405) |
| `opsm`: δ | 1, 0 where Â < 0 and mean log μ/π_θ > δ | DeepSeek-V3.2 (2512.02556) |

`sequence_…` replaces w by its product over a response (k3 and KL by their sums), and
`mean_…` by its geometric mean (k3 and KL by their means): TRL's default is
`sequence_mask` at 3, verl's Geo-RS is `mean_reject`. `max_reject` and `max_k3` drop a
response if `token_…` drops one of its tokens: SkyRL's outlier mask (it suggests 1e-4 to
100), verl's `seq_max_k3`. All KLs are binary: of this token against all others.
OpenRLHF has `token_kl` and `mean_kl` as gating by `binary_kl`, at level token or seq,
and also multiplies by w: add `token_truncate` at 1e9.

**Where engines differ:** bounds are on w, as in TRL, SkyRL and AReaL; verl 0.9.1 has
its `…_k1` on 1/w. OPSM goes from the sampler to π_θ, as in DeepSeek's paper and TRL; in
slime it starts from π_old. A dropped token stays in the average's denominator, as in
TRL, IcePop, SkyRL and AReaL; where verl *rejects* one, it averages over the rest.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor

from refimpl.importance import Mask, log_ratio, ratio, sequence_log_ratio
from refimpl.kl import binary
from refimpl.validation import Positive, UserError, checker, guarded, refuse_unknown

BAND = Positive | tuple[Positive, Positive]


class SamplerGap(NamedTuple):
    """Log-probs of policy and sampler, nats, and the rows with a negative advantage."""

    logp: Float[Tensor, "B T"]
    sampler_logp: Float[Tensor, "B T"]
    current_logp: Float[Tensor, "B T"]
    mask: Mask
    negative: Bool[Tensor, "B _"] | None

    @property
    def z(self) -> Float[Tensor, "B T"]:
        """log w, nats; 0 outside the mask."""
        return log_ratio(self.logp, self.sampler_logp, self.mask)


class Rule(NamedTuple):
    """A function f(gap, bound) → factor, (B, T) or (B, 1), and the bound's type."""

    factor: Callable[[SamplerGap, Any], Tensor]
    bound: Any = BAND
    weighs: bool = False  # it multiplies by w; the others only drop


LEVELS: dict[str, Callable[[Tensor, Mask], Tensor]] = {
    "token": lambda x, mask: x,
    "sequence": lambda x, mask: x.sum(-1, keepdim=True),
    "mean": lambda x, mask: sequence_log_ratio(x, mask)[:, None],
}


def rules_of(level: Callable[[Tensor, Mask], Tensor]) -> dict[str, Rule]:
    """Make the rules of one level: per token, or per response."""

    def w(gap: SamplerGap) -> Tensor:
        return ratio(level(gap.z, gap.mask))

    def k3(gap: SamplerGap) -> Tensor:
        return level(ratio(gap.z) - 1 - gap.z, gap.mask)

    def kl(gap: SamplerGap) -> Tensor:
        each = binary(gap.sampler_logp, gap.logp)
        return level(torch.where(gap.mask.bool(), each, 0.0), gap.mask)

    return {
        "truncate": Rule(lambda x, bound: w(x).clamp(*pair(bound)), weighs=True),
        "mask": Rule(lambda x, bound: w(x) * inside(w(x), bound), weighs=True),
        "reject": Rule(lambda x, bound: inside(w(x), bound)),
        "k3": Rule(lambda x, bound: inside(k3(x), bound), Positive),
        "kl": Rule(lambda x, bound: inside(kl(x), bound), Positive),
    }


def by_worst(rule: Rule) -> Rule:
    """Turn a rule per token into one per response: 0 if it drops any token."""

    def least(gap: SamplerGap, bound: Any) -> Tensor:
        # Padding has z = 0, which is inside every bound.
        return rule.factor(gap, bound).amin(-1, keepdim=True)

    return rule._replace(factor=least)


def kpop(gap: SamplerGap, bound: float) -> Tensor:
    """Return w, or 0 where a binary KL(π‖μ) or KL(μ‖π) is above φ = `bound`."""
    pi, mu = gap.logp, gap.sampler_logp
    kl = binary(pi, mu).maximum(binary(mu, pi))
    return ratio(gap.z) * inside(torch.where(gap.mask.bool(), kl, 0.0), bound)


def opsm(gap: SamplerGap, bound: float) -> Tensor:
    """Return 1, or 0 for a response with Â < 0 and mean log μ/π_θ > δ = `bound`."""
    if gap.negative is None:
        raise UserError("opsm drops tokens by their advantages: give advantages too")
    z = log_ratio(gap.current_logp, gap.sampler_logp, gap.mask)
    mean = sequence_log_ratio(z, gap.mask)  # of log π_θ/μ
    return torch.where(gap.negative, inside(-mean[:, None], bound), 1.0)


def pair(bound: float | tuple[float, float]) -> tuple[float, float]:
    """Return lower and upper bound; a single number is the upper one."""
    return bound if isinstance(bound, tuple) else (-torch.inf, bound)


def inside(x: Tensor, bound: float | tuple[float, float]) -> Tensor:
    """Return 1 inside the bounds, 0 outside."""
    low, high = pair(bound)
    return ((x >= low) & (x <= high)).to(x)


RULES = {
    f"{name}_{action}": rule
    for name, level in LEVELS.items()
    for action, rule in rules_of(level).items()
}
RULES |= {f"max_{act}": by_worst(RULES[f"token_{act}"]) for act in ("reject", "k3")}
RULES |= {"kpop": Rule(kpop, Positive, weighs=True), "opsm": Rule(opsm, Positive)}
CHECKS = {name: checker(name, rule.bound) for name, rule in RULES.items()}
WEIGHING = {name for name, rule in RULES.items() if rule.weighs}


@guarded
def check(rules: Mapping) -> dict[str, Any]:
    """Convert `rules` to plain values. Raises `UserError` on a rule that is invalid."""
    refuse_unknown("corrections", rules, RULES)
    given = {name: CHECKS[name](bound) for name, bound in rules.items()}
    for name, bound in given.items():
        low, high = pair(bound)
        if RULES[name].bound is BAND and not (low <= 1 <= high and low < high):
            raise UserError(
                f"{name} must have bounds around 1, the w where sampler and policy "
                f"agree, such as 2 or (0.5, 5); got {bound}"
            )
    if len(several := sorted(WEIGHING & given.keys())) > 1:
        raise UserError(f"{' and '.join(several)} each multiply by w: use one of them")
    return given


@guarded
def factor(
    rules: Mapping,
    logp: Float[Tensor, "B T"],
    sampler_logp: Float[Tensor, "B T"],
    mask: Mask,
    advantages: Real[Tensor, " B"] | Real[Tensor, "B T"] | None,
    now: Float[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """Compute the product of the factors of all `rules`.

    `logp`, nats, is the log of the numerator of w. `opsm` needs `advantages` and
    log π_θ, which is `now` (None: `logp`). Raises `UserError` on an invalid rule or
    bound, and if `opsm` is given no advantages.
    """
    negative = None if advantages is None else advantages.view(len(mask), -1) < 0
    gap = SamplerGap(logp, sampler_logp, logp if now is None else now, mask, negative)
    return product(check(rules), gap)


@torch.no_grad()
def product(rules: Mapping, gap: SamplerGap) -> Float[Tensor, "B T"]:
    """Compute `factor` without checking the rules."""
    result = torch.ones_like(gap.z)
    for name, bound in rules.items():
        result = result * RULES[name].factor(gap, bound)
    return result
