"""What may be added to a loss, and what may correct the ratio before it.

Each is made once, where a setting asks for it (`terms_of`, `corrections_of`). `part` is
a micro-batch, `reading` what the pass over it said, `weight` the (B, T) normaliser's of
the whole mini-batch, cut to the part.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from refimpl import corrections, moe
from refimpl import kl as estimators
from refimpl.algorithms import value_loss
from refimpl.config import TrainConfig
from refimpl.logprobs import Reading
from refimpl.metrics import MeanOfPassed, Metrics, OwnLoss, Share
from refimpl.rollout import Batch

DROPPED = "rollout_corr/rollout_rs"
Added = tuple[Float[Tensor, ""], Metrics]
Term = Callable[[Batch, Reading, Tensor], Added]

BALANCE = 1e-3
"""Weight of the load-balancing loss; Qwen3-MoE's, in the warm start too."""


def kl(beta: float, estimator: str) -> Term:
    """+ β Σ weight · KL(π_θ ‖ π_ref), by an estimator of `refimpl.kl`."""
    estimate = estimators.ESTIMATORS[estimator]

    def term(part: Batch, reading: Reading, weight: Tensor) -> Added:
        each = estimate(reading.logp, part.ref_logp, part.old_logp)
        return beta * (each * weight).sum(), {}

    return term


def entropy(bonus: float) -> Term:
    """− c₂ Σ weight · H, the entropy of the next-token distribution (PPO, Eq. 9)."""

    def term(part: Batch, reading: Reading, weight: Tensor) -> Added:
        return -bonus * (reading.entropy * weight).sum(), {}

    return term


def load_balance(part: Batch, reading: Reading, weight: Tensor) -> Added:
    """+ 1e-3 times the load-balancing loss, of each micro-batch by itself."""
    routers, mask = reading.routers, part.rollout.mask
    share, tokens = part.mask.sum() / part.tokens, mask.sum()
    change = (routers.expert_change * mask).sum() / tokens
    shift = (routers.gamma.detach() * mask).sum() / tokens
    return BALANCE * share * routers.balance, {
        "router/expert_change": MeanOfPassed(change),
        "router/shift": MeanOfPassed(shift),
        "router/load_balance": MeanOfPassed(routers.balance.detach()),
    }


def value(values: Callable, clip: float | None) -> Term:
    """+ the critic's loss, a mean over tokens whatever the policy's normaliser is."""

    def term(part: Batch, reading: Reading, weight: Tensor) -> Added:
        predicted = values(part.rollout)
        mean = part.mask.to(predicted.dtype) / part.tokens
        loss = value_loss(
            predicted, part.old_values, part.targets, part.mask, mean, epsilon=clip
        )
        return loss, {"value_loss": OwnLoss(loss.detach())}

    return term


def terms_of(
    config: TrainConfig, routers_known: bool, values: Callable | None
) -> list[Term]:
    """What is added to a loss; `values` is what reads a critic, if there is one."""
    terms: list[Term] = []
    if routers_known:
        terms.append(load_balance)
    if config.beta > 0 and config.kl_in == "loss":
        terms.append(kl(config.beta, config.kl_estimator))
    if config.entropy_bonus:
        terms.append(entropy(config.entropy_bonus))
    if values is not None:
        terms.append(value(values, config.value_clip))
    return terms


class Given(NamedTuple):
    """What a loss is called with beside advantages and mask."""

    logp: Float[Tensor, "B T"]
    old_logp: Float[Tensor, "B T"]
    weight: Float[Tensor, "B T"]
    metrics: Metrics  # of the corrections, which add theirs


Correction = Callable[[Batch, Reading, Given], Given]


def corrected(rules: dict[str, Any], two_policies: bool) -> Correction:
    """weight · what `corrections` say; the shares of a mini-batch's tokens that they
    drop, and of its responses that lose one, have verl's names."""

    def correct(part: Batch, reading: Reading, given: Given) -> Given:
        now, mask = reading.logp.detach(), part.mask
        logp, bad = now if two_policies else part.old_logp, part.advantages < 0
        seen = corrections.Seen(logp, part.rollout.logp, now, mask, bad)
        factor = corrections.product(rules, seen)
        dropped = (factor == 0) & mask.bool()
        tokens = dropped.sum() / part.tokens
        rows = dropped.any(-1).sum() / part.responses
        given.metrics[f"{DROPPED}_masked_fraction"] = Share(tokens)
        given.metrics[f"{DROPPED}_seq_masked_fraction"] = Share(rows)
        return given._replace(weight=given.weight * factor)

    return correct


def router_shift(placement: moe.Placement, one_ratio: bool, detach: bool) -> Correction:
    """RSPO's γ, before or after the clip; not detached, its own gradient as well."""

    def correct(part: Batch, reading: Reading, given: Given) -> Given:
        gamma, logp = reading.routers.gamma, given.logp
        old_logp, weight = moe.shifted(
            given.old_logp, given.weight, part.mask, gamma, placement, one_ratio
        )
        if not detach:  # no change in value
            logp = logp + (gamma.log() - gamma.log().detach()) * part.mask
        return given._replace(logp=logp, old_logp=old_logp, weight=weight)

    return correct


def corrections_of(config: TrainConfig, one_ratio: bool) -> list[Correction]:
    """What corrects the ratio, or the weight, before a loss sees them."""
    asked = []
    if config.corrections:
        asked.append(corrected(config.corrections, config.trust_sampler))
    if config.router_shift:
        asked.append(router_shift(config.placement, one_ratio, config.detach_shift))
    return asked
