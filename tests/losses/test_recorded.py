"""Losses and gradients as recorded before the house was rebuilt: nothing moved.

600 cases on random float64 inputs: every algorithm, some hyperparameters, every
normaliser, without and with a router shift (before and after the clip) and truncated
importance weights. The record was made by the code that took all of these as arguments
of every loss.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch.testing import assert_close

from refimpl import moe, normalisers
from refimpl.algorithms import ALGORITHMS
from refimpl.importance import truncated_weight

FILE = Path(__file__).parent / "recorded.safetensors"
DATA = load_file(FILE)
with safe_open(FILE, "pt") as opened:
    CASES = json.loads(opened.metadata()["cases"])


def weight_of(normaliser: str) -> torch.Tensor:
    known = {"group": DATA["group"], "max_length": 10}
    return normalisers.apply(
        normalisers.NORMALISERS[normaliser], DATA["mask"], **known
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_loss_gradient_and_clip_fractions_are_as_recorded(name):
    algorithm, mask = ALGORITHMS[name], DATA["mask"]
    own = [(i, *case) for i, case in enumerate(CASES) if case[0] == name]
    assert len(own) >= 48  # half of them with another hyperparameter
    for i, _, hyper, normaliser, shift, truncated, per_token, metrics in own:
        weight, old_logp = weight_of(normaliser), DATA["old_logp"]
        if truncated:
            weight = weight * truncated_weight(
                old_logp, DATA["rollout_logp"], mask, 2.0
            )
        if shift:
            old_logp, weight = moe.shifted(
                old_logp, weight, mask, DATA["gamma"], shift, algorithm.one_ratio
            )
        advantages = DATA["token_advantages" if per_token else "advantages"]
        logp = DATA["logp"].clone().requires_grad_()
        found = algorithm.policy_loss(
            logp, old_logp, advantages, mask, weight, **hyper
        )
        (gradient,) = torch.autograd.grad(found.loss, logp)
        close = {"rtol": 0, "atol": 1e-12}
        assert_close(found.loss, DATA["losses"][i], **close)
        assert_close(gradient, DATA["gradients"][i], **close)
        fractions = {k: v for k, v in metrics.items() if k.startswith("clip_ratio")}
        assert fractions == {k: v for k, v in found.metrics.items() if k in fractions}


def test_the_record_tells_its_cases_apart():
    """Few cases share a gradient, so a case that is computed as another is seen."""
    rounded = {tuple(g.flatten().tolist()) for g in DATA["gradients"].round(decimals=9)}
    assert len(rounded) > 0.8 * len(CASES)
