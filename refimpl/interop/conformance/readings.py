"""What a difference may come from: known misreadings, and departures that are on
purpose, each as a change of the question."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from refimpl import importance
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.interop.conformance.cases import Case, loss_of

Asked = tuple[Algorithm, dict[str, Tensor], dict[str, Any]]
Reading = Callable[..., Asked]


class DoesNotApply(Exception):
    """A reading that means nothing for this algorithm or these settings."""


def _with(**settings: Any) -> Reading:
    return lambda algorithm, inputs, own: (algorithm, inputs, own | settings)


def _instead(name: str, value: Any) -> Reading:
    """Another value of a setting, where the case has one."""

    def read(algorithm, inputs, own):
        if not own.get(name):
            raise DoesNotApply
        return algorithm, inputs, own | {name: value}

    return read


def _given(change: Callable[[dict], dict]) -> Reading:
    """Other hyperparameters, where the algorithm has them."""

    def read(algorithm, inputs, own):
        given = own["hyperparameters"]
        try:
            changed = change(given)
        except KeyError:
            raise DoesNotApply from None
        if not set(changed) <= set(algorithm.names):
            raise DoesNotApply
        return algorithm, inputs, own | {"hyperparameters": given | changed}

    return read


def _as(name: str, of: str) -> Reading:
    """Another algorithm in place of `of`, with the same settings."""

    def read(algorithm, inputs, own):
        if algorithm.name != of:
            raise DoesNotApply
        return ALGORITHMS[name], inputs, own

    return read


def _without_empty_rows(algorithm, inputs, own):
    full = inputs["mask"].sum(-1) > 0
    return algorithm, {k: v[full] for k, v in inputs.items()}, own


def _holes_closed(algorithm, inputs, own):
    upto = inputs["mask"].flip(-1).cummax(-1).values.flip(-1)
    return algorithm, inputs | {"mask": upto}, own


def _one_weight_each(algorithm, inputs, own):
    """The geometric mean of a response's truncated weights, at each of its tokens."""
    if not own.get("cap"):
        raise DoesNotApply
    mask, old = inputs["mask"], inputs["old_logp"]
    log = (old - inputs["rollout_logp"]).clamp(max=math.log(own["cap"]))
    each = importance.sequence_log_ratio(log * mask, mask)[:, None]
    return algorithm, inputs | {"rollout_logp": old - each}, own | {"cap": 1e9}


READINGS: dict[str, Reading] = {
    "exp(z) has no limit at |z| = 20": _with(limit=math.inf),
    "the dual clip (c = 3) is always on": _given(lambda own: {"dual_clip": 3.0}),
    "an empty response is left out of B": _without_empty_rows,
    "an empty response counts as one of ratio 1": _with(empty=True),
    "holes in the mask are not seen": _holes_closed,
    "averaged over all tokens, always": _with(normaliser="token_mean"),
    "averaged over responses, always": _with(normaliser="seq_mean_token_mean"),
    "divided by a constant, always": _with(normaliser="constant"),
    "the KL's ratio is differentiated, too": _instead("kl", "unbiased_k3"),
    "the KL is k1": _instead("kl", "k1"),
    "the KL is k2": _instead("kl", "k2"),
    "the KL is k3": _instead("kl", "k3"),
    "there is no KL": _instead("kl", None),
    "there is no truncated weight": _instead("cap", None),
    "the truncated weights' geometric mean": _one_weight_each,
    "γ before the clip": _instead("placement", "before_clip"),
    "γ after the clip": _instead("placement", "after_clip"),
    "there is no γ": _instead("placement", None),
    "the gradient is GSPO-token's": _as("gspo_token", "gspo"),
    "the gradient is GSPO's": _as("gspo", "gspo_token"),
    "the cap is 1 + max_ratio": _given(lambda own: {"max_ratio": own["max_ratio"] + 1}),
    "the two τ are exchanged": _given(
        lambda own: {"tau_pos": own["tau_neg"], "tau_neg": own["tau_pos"]}
    ),
    "one τ, that of good responses": _given(lambda own: {"tau_neg": own["tau_pos"]}),
}


def matches(case: Case, loss: float, gradient: Tensor, near: float) -> str | None:
    """The reading, or the pair of them, that gives this loss and gradient, or None."""
    for size in (1, 2):
        for titles in itertools.combinations(READINGS, size):
            logp = case.inputs["logp"].clone().requires_grad_()
            asked = ALGORITHMS[case.algorithm], {**case.inputs, "logp": logp}
            try:
                found = _read(*asked, case.settings, [READINGS[t] for t in titles])
            except DoesNotApply:
                continue
            (slope,) = torch.autograd.grad(found, logp)
            if alike(found.item(), slope, loss, gradient, near):
                return ", and ".join(titles)
    return None


def _read(algorithm, inputs, own, readings: list[Reading]) -> Tensor:
    """The loss under all of these readings."""
    for reading in readings:
        algorithm, inputs, own = reading(algorithm, inputs, own)
    limit = importance.LOG_RATIO_LIMIT
    importance.LOG_RATIO_LIMIT = own.get("limit", limit)
    try:
        loss = loss_of(algorithm, inputs, own).loss
    finally:
        importance.LOG_RATIO_LIMIT = limit
    if own.get("empty"):
        empty = inputs["mask"].sum(-1) == 0
        loss = loss - inputs["advantages"][empty].sum() / len(empty)
    return loss


def alike(a: float, g: Tensor, b: float, h: Tensor, near: float) -> bool:
    """Equal loss and gradient, to `near` of their size or of 1, whichever is more."""
    size = max(1.0, g.abs().max().item())
    close = abs(a - b) <= near * max(1.0, abs(a))
    return close and bool((g - h).abs().max() <= near * size)
