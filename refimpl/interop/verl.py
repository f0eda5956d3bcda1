"""The losses of this package in verl's registry, under names like `refimpl_sapo`.

Importing this file registers them, and verl imports it in every worker by itself: it is
a `verl.plugins` entry point of this package. In a configuration of verl:

    actor_rollout_ref.actor.policy_loss.loss_mode=refimpl_sapo
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean

A method with other hyperparameters, or a gate of your own, is registered in a module
that the workers import, `VERL_USE_EXTERNAL_MODULES=my_losses`:

    from refimpl.interop.verl import register
    register("sapo", "sapo_narrow", tau_pos=8.8, tau_neg=8.8)

Weights are what verl's `agg_loss` makes of the global counts, so that micro-batches and
ranks keep the mini-batch's denominator. Tested with verl 0.9.1.

**Departures.** RSPO is not here: verl hands a policy loss log-probs and no routing, and
without γ it is GMPO. Advantages are verl's: Dr. GRPO needs
`algorithm.norm_adv_by_std_in_grpo=False` beside it.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import verl
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.workers.config import ActorConfig

from refimpl import algorithms, normalisers
from refimpl.algorithms import ALGORITHMS, Algorithm

TESTED = "0.9"
PREFIX = "refimpl_"
AGGREGATION = {
    normalisers.seq_mean_token_mean: "seq-mean-token-mean",
    normalisers.token_mean: "token-mean",
    normalisers.constant: "seq-mean-token-sum-norm",
}
"""verl's name for a normaliser."""
OURS = {
    "clip_ratio": 0.2,
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.2,
    "clip_ratio_c": 3.0,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
}
"""Settings of verl's own losses, which take no part, at their defaults."""


def register(
    algorithm: str | Algorithm, name: str | None = None, **hyperparameters: Any
) -> str:
    """Put `algorithm` into verl's registry; the name for `policy_loss.loss_mode`.

    `name`: default `refimpl_` and the algorithm's own. Raises `ImportError` on a verl
    that was not tested, `ValueError` or `TypeError` on what cannot be computed there.
    """
    if isinstance(algorithm, str):
        algorithm = algorithms.get(algorithm)
    if verl.__version__.rsplit(".", 1)[0] != TESTED:
        said = (
            f"the bridge was tested with verl {TESTED}, this is {verl.__version__}: "
            f"pip install verl~={TESTED}.0"
        )
        warnings.warn(said, stacklevel=2)  # verl swallows what a plugin raises
        raise ImportError(said)
    if algorithm.training.get("router_shift"):
        raise ValueError(
            f"{algorithm.name} needs the routing of two passes, and verl hands a "
            "policy loss log-probs alone; take gmpo, of which it is the routed form, "
            "or the bridge to TRL"
        )
    if algorithm.normaliser not in AGGREGATION:
        raise ValueError(
            f"{algorithm.name} is averaged by {algorithm.normaliser.__name__}, and "
            f"verl knows {', '.join(AGGREGATION.values())}"
        )
    given = algorithm.check_hyperparameters(hyperparameters)
    name = PREFIX + algorithm.name if name is None else name
    register_policy_loss(name)(_loss_of(algorithm, given))
    return name


def _loss_of(algorithm: Algorithm, given: dict[str, Any]) -> Callable:
    wanted = AGGREGATION[algorithm.normaliser]

    def policy_loss(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = wanted,
        config: ActorConfig | None = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        _check(algorithm, wanted, loss_agg_mode, config)
        weight = _weight(log_prob, response_mask, wanted, config)
        if rollout_is_weights is not None:
            weight = weight * rollout_is_weights
        found = algorithm.policy_loss(
            log_prob, old_log_prob, advantages, response_mask, weight, **given
        )
        z = torch.where(response_mask.bool(), log_prob.detach() - old_log_prob, 0.0)
        metrics = {f"actor/{name}": value for name, value in found.metrics.items()}
        clipped = found.metrics.get("clip_ratio/region_mean", 0.0)
        return found.loss, metrics | {
            "actor/ppo_kl": -(z.sum() / response_mask.sum().clamp(min=1)).item(),
            "actor/pg_clipfrac": clipped,
        }

    return policy_loss


def _weight(like: Tensor, mask: Tensor, mode: str, config: ActorConfig | None):
    """What `agg_loss` multiplies each token's loss by: it is linear in them."""
    counts = config.global_batch_info if config is not None else {}
    with torch.enable_grad():
        each = torch.zeros_like(like, requires_grad=True)
        total = agg_loss(each, mask.to(each.dtype), mode, **counts)
        return torch.autograd.grad(total, each)[0]


def _check(algorithm, wanted: str, mode: str, config: ActorConfig | None) -> None:
    """Refuse what would be ignored without a word."""
    if mode != wanted:
        raise ValueError(
            f"{algorithm.name} is averaged as {wanted!r}: set "
            f"actor_rollout_ref.actor.loss_agg_mode={wanted}, got {mode!r}"
        )
    for name, default in OURS.items() if config is not None else ():
        if getattr(config, name, default) not in (default, None):
            raise ValueError(
                f"{name}={getattr(config, name)} is a setting of verl's own losses: "
                f"register({algorithm.name!r}, name, ...) with the hyperparameters "
                f"{', '.join(algorithm.names) or '(none)'}"
            )


REGISTERED = [
    register(algorithm)
    for algorithm in ALGORITHMS.values()
    if not algorithm.training.get("router_shift")
]
