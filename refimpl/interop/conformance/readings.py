"""Possible causes of a difference: known misreadings of the papers and intended
departures. Each is a function that makes the same change to a case."""

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from refimpl import importance
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.interop.conformance.cases import Case, loss_of

Question = tuple[Algorithm, dict[str, Tensor], dict[str, Any]]
Reading = Callable[..., Question]


class DoesNotApply(Exception):
    """The reading has no meaning for this algorithm or these settings."""


def _with(**changed: Any) -> Reading:
    """Add or replace settings."""
    return lambda algorithm, inputs, settings: (algorithm, inputs, settings | changed)


def _instead(name: str, value: Any) -> Reading:
    """Replace the value of a setting if the case has it."""

    def read(algorithm, inputs, settings):
        if not settings.get(name):
            raise DoesNotApply
        return algorithm, inputs, settings | {name: value}

    return read


def _given(change: Callable[[dict], dict]) -> Reading:
    """Change hyperparameters if the algorithm has them."""

    def read(algorithm, inputs, settings):
        given = settings["hyperparameters"]
        try:
            changed = given | change(given)
        except KeyError:
            raise DoesNotApply from None
        if changed.keys() > given.keys():
            raise DoesNotApply
        return algorithm, inputs, settings | {"hyperparameters": changed}

    return read


def _as(name: str, *of: str) -> Reading:
    """Replace the objective of the algorithms `of` by that of `name`."""

    def read(algorithm, inputs, settings):
        if algorithm.name not in of:
            raise DoesNotApply
        objective = ALGORITHMS[name].objective
        return replace(algorithm, objective=objective), inputs, settings

    return read


def _without_empty_rows(algorithm, inputs, settings):
    full = inputs["mask"].sum(-1) > 0
    return algorithm, {k: v[full] for k, v in inputs.items()}, settings


def _holes_closed(algorithm, inputs, settings):
    upto = inputs["mask"].flip(-1).cummax(-1).values.flip(-1)
    return algorithm, inputs | {"mask": upto}, settings


def _weights_in_the_ratio(algorithm, inputs, settings):
    """Include the truncated weights of all tokens in VESPO's W."""
    if not settings.get("cap") or algorithm.name != "vespo":
        raise DoesNotApply
    gap = inputs["old_logp"] - inputs["rollout_logp"]
    behind = inputs["old_logp"] - gap.clamp(max=math.log(settings["cap"]))
    return algorithm, inputs | {"old_logp": behind}, settings | {"cap": None}


def _one_weight_each(algorithm, inputs, settings):
    """Give each token the geometric mean of its response's truncated weights."""
    if not settings.get("cap"):
        raise DoesNotApply
    mask, old = inputs["mask"], inputs["old_logp"]
    log = (old - inputs["rollout_logp"]).clamp(max=math.log(settings["cap"]))
    each = importance.sequence_log_ratio(log * mask, mask)[:, None]
    return algorithm, inputs | {"rollout_logp": old - each}, settings | {"cap": 1e9}


READINGS: dict[str, Reading] = {
    "exp(z) has no limit at |z| = 20": _with(limit=math.inf),
    "the dual clip (c = 3) is always on": _given(lambda _: {"dual_clip": 3.0}),
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
    "the gradient is GSPO-token's": _as("gspo_token", "gspo", "luspo"),
    "the truncated weights are a part of W": _weights_in_the_ratio,
    "the gradient is GSPO's": _as("gspo", "gspo_token"),
    "the cap is 1 + max_ratio": _given(lambda h: {"max_ratio": h["max_ratio"] + 1}),
    "the two τ are exchanged": _given(
        lambda h: {"tau_pos": h["tau_neg"], "tau_neg": h["tau_pos"]}
    ),
    "one τ, that of good responses": _given(lambda h: {"tau_neg": h["tau_pos"]}),
}


def matches(case: Case, loss: float, gradient: Tensor, near: float) -> str | None:
    """Return the reading or pair of readings with this loss and gradient, or None."""
    for size in (1, 2):
        for titles in itertools.combinations(READINGS, size):
            try:
                value, slope = read(case, titles)
            except DoesNotApply:
                continue
            if alike(value, slope, loss, gradient, near):
                return ", and ".join(titles)
    return None


def read(case: Case, titles: Iterable[str]) -> tuple[float, Tensor]:
    """Compute loss and gradient of a case under all of these readings."""
    logp = case.inputs["logp"].clone().requires_grad_()
    algorithm, inputs = ALGORITHMS[case.algorithm], {**case.inputs, "logp": logp}
    settings = case.settings
    for title in titles:
        algorithm, inputs, settings = READINGS[title](algorithm, inputs, settings)
    limit = settings.get("limit", importance.LOG_RATIO_LIMIT)
    with patch.object(importance, "LOG_RATIO_LIMIT", limit):
        loss = loss_of(algorithm, inputs, settings).loss
    if settings.get("empty"):
        empty = inputs["mask"].sum(-1) == 0
        loss = loss - inputs["advantages"][empty].sum() / len(empty)
    return loss.item(), torch.autograd.grad(loss, logp)[0]


def alike(a: float, g: Tensor, b: float, h: Tensor, near: float) -> bool:
    """True if losses, and gradients at all tokens, agree up to `near` times their size.

    Sizes below 1 count as 1.
    """
    size = max(1.0, g.abs().max().item())
    close = abs(a - b) <= near * max(1.0, abs(a))
    return close and bool((g - h).abs().max() <= near * size)
