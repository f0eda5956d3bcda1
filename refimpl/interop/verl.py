"""The losses of this package in verl's registry, under names like `refimpl_sapo`.

Importing this file registers the losses. verl imports it in every worker by itself,
because the file is a `verl.plugins` entry point of this package. In a configuration of
verl (`python -m refimpl verl-config sapo` writes a complete one):

    actor_rollout_ref.actor.policy_loss.loss_mode=refimpl_sapo
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean

Register a method with other hyperparameters, or a gate of your own, in a module that
the workers import, `VERL_USE_EXTERNAL_MODULES=my_losses`:

    from refimpl.interop.verl import register
    register("sapo", "sapo_narrow", tau_pos=8.8, tau_neg=8.8)

The weights are those of verl's `agg_loss` with its global counts, so that micro-batches
and ranks keep the mini-batch's denominator. Tested with verl 0.9.1.

**Departures.** RSPO is missing, because verl gives a policy loss no routing, and
without γ the method is GMPO. Advantages are verl's; Dr. GRPO also needs
`algorithm.norm_adv_by_std_in_grpo=False`.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import verl
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.workers.config import ActorConfig

from refimpl import algorithms
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.interop.configs import PREFIX, missing
from refimpl.validation import UserError, guarded

TESTED = "0.9"
OURS = {
    "clip_ratio": 0.2,
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.2,
    "clip_ratio_c": 3.0,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
}
"""Settings of verl's own losses, which have no effect here, with their defaults."""


@guarded
def register(
    algorithm: str | Algorithm, name: str | None = None, **hyperparameters: Any
) -> str:
    """Put `algorithm` into verl's registry; return the name for `loss_mode`.

    `name` is by default `refimpl_` and the algorithm's name. Raises `UserError` on an
    untested version of verl, and on a method that verl cannot compute.
    """
    method = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
    if verl.__version__.rsplit(".", 1)[0] != TESTED:
        why = (
            f"the bridge was tested with verl {TESTED}, this is {verl.__version__}: "
            f"pip install verl~={TESTED}.0"
        )
        warnings.warn(why, stacklevel=3)  # verl swallows what a plugin raises
        raise UserError(why)
    if why := missing(method):
        raise UserError(why)
    given = method.check_hyperparameters(hyperparameters)
    name = PREFIX + method.name if name is None else name
    register_policy_loss(name)(_loss_of(method, given))
    return name


def _loss_of(algorithm: Algorithm, given: dict[str, Any]) -> Callable:
    wanted: str = algorithm.normaliser.verl  # type: ignore[attr-defined]

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
        loss, metrics = algorithm.policy_loss(
            log_prob, old_log_prob, advantages, response_mask, weight, **given
        )
        z = torch.where(response_mask.bool(), log_prob.detach() - old_log_prob, 0.0)
        return loss, {f"actor/{name}": value for name, value in metrics.items()} | {
            "actor/ppo_kl": -(z.sum() / response_mask.sum().clamp(min=1)).item(),
            "actor/pg_clipfrac": metrics.get("clip_ratio/region_mean", 0.0),
        }

    return policy_loss


def _weight(like: Tensor, mask: Tensor, mode: str, config: ActorConfig | None):
    """Return each token's factor in `agg_loss`: its gradient, since it is linear."""
    counts = config.global_batch_info if config is not None else {}
    with torch.enable_grad():
        each = torch.zeros_like(like, requires_grad=True)
        total = agg_loss(each, mask.to(each.dtype), mode, **counts)
        return torch.autograd.grad(total, each)[0]


def _check(algorithm, wanted: str, mode: str, config: ActorConfig | None) -> None:
    """Refuse settings that would silently be ignored."""
    if mode != wanted:
        raise UserError(
            f"{algorithm.name} is averaged as {wanted!r}: set "
            f"actor_rollout_ref.actor.loss_agg_mode={wanted}, got {mode!r}"
        )
    for name, default in OURS.items() if config is not None else ():
        if getattr(config, name, default) not in (default, None):
            raise UserError(
                f"{name}={getattr(config, name)} is a setting of verl's own losses: "
                f"register({algorithm.name!r}, name, ...) with the hyperparameters "
                f"{', '.join(algorithm.annotations) or '(none)'}"
            )


LEFT_OUT = [why for a in ALGORITHMS.values() if (why := missing(a))]
REGISTERED = [register(a) for a in ALGORITHMS.values() if not missing(a)]
if LEFT_OUT:
    warnings.warn(f"not in verl's registry: {'; '.join(LEFT_OUT)}", stacklevel=2)
