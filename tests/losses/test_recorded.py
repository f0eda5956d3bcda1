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
    return normalisers.apply(normalisers.NORMALISERS[normaliser], DATA["mask"], **known)


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
        found = algorithm.policy_loss(logp, old_logp, advantages, mask, weight, **hyper)
        (gradient,) = torch.autograd.grad(found.loss, logp)
        close = {"rtol": 0, "atol": 1e-12}
        assert_close(found.loss, DATA["losses"][i], **close)
        assert_close(gradient, DATA["gradients"][i], **close)
        fractions = {k: v for k, v in metrics.items() if k.startswith("clip_ratio")}
        assert fractions == {k: v for k, v in found.metrics.items() if k in fractions}


def gradients_of(wanted) -> list[tuple]:
    """The recorded gradients, rounded, of the cases for which `wanted` holds."""
    rounded = DATA["gradients"].round(decimals=9)
    cases = enumerate(CASES)
    return [tuple(rounded[i].flatten().tolist()) for i, c in cases if wanted(*c[:2])]


# 25 cases: four normalisers × three shifts × two truncations, and one with an
# advantage per token. Where γ is placed matters only to a clip. Where log π takes the
# place of the ratio, γ before the clip is no γ; where no ratio is clipped (none exceeds
# 5), before and after are the same. There two of the three shifts coincide: 25 − 8.
NO_CLIP = [("reinforce", {}), ("reinforce", {"correct": True}), ("cispo", {})]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_case_computed_with_another_weight_or_shift_would_be_seen(name):
    for hyper in [c[1] for c in CASES if c[0] == name]:
        own = gradients_of(lambda *case, hyper=hyper: case == (name, hyper))
        assert len(own) == 25
        assert len(set(own)) == (17 if (name, hyper) in NO_CLIP else 25)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_case_computed_by_another_method_would_be_seen(name):
    """Some of its gradients are no other method's, but for those of one objective."""
    same = {name}
    for family in ({"ppo", "grpo", "dr_grpo"}, {"gmpo", "rspo"}):
        same |= family if name in family else set()
    own = set(gradients_of(lambda one, _: one == name))
    assert own - set(gradients_of(lambda one, _: one not in same))
