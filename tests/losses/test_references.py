"""Our losses and gradients against TRL's and verl's, frozen in references.json.

`make_references.py` wrote the file; it needs both frameworks, these tests neither.
"""

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from refimpl.algorithms import ALGORITHMS
from refimpl.kl import ESTIMATORS
from refimpl.normalisers import apply, constant

FROZEN = json.loads((Path(__file__).parent / "references.json").read_text())
KL = FROZEN["kl"]


def title(result: dict) -> str:
    settings = result.get("hyperparameters", {}).items()
    parts = [result["framework"], result["algorithm"], result.get("estimator", "")]
    parts += [f"{k}={v}" for k, v in settings] + [str(result["batch"])]
    return "-".join(part for part in parts if part)


def wide(numbers) -> torch.Tensor:
    return tensor(numbers, dtype=torch.float64)


def ours(name: str, batch: int, estimator=None, beta=0.0, max_length=None, **settings):
    """(loss, gradient) on a frozen batch. `max_length` is the normaliser's."""
    data = {k: wide(v) for k, v in FROZEN["batches"][batch].items()}
    logp, mask = data.pop("logp").requires_grad_(), data["mask"]
    algorithm = ALGORITHMS[name]
    assert (algorithm.normaliser is constant) == (max_length is not None)
    weight = apply(algorithm.normaliser, mask, max_length=max_length)
    loss = algorithm.policy_loss(logp, **data, weight=weight, **settings).loss
    if estimator is not None:
        ref_logp = wide(KL["ref_logp"][batch])
        kl = ESTIMATORS[estimator](logp, ref_logp, data["old_logp"])
        loss = loss + beta * (kl * weight).sum()
    return loss.detach(), torch.autograd.grad(loss, logp)[0]


@pytest.mark.parametrize("result", FROZEN["results"] + KL["results"], ids=title)
def test_loss_and_gradient_are_the_frameworks(result):
    """With a KL: loss = policy_loss + β Σ weight · estimator."""
    name, batch = result["algorithm"], result["batch"]
    settings = result.get("hyperparameters", {})
    kl = {key: result[key] for key in ("estimator", "beta") if key in result}
    loss, gradient = ours(name, batch, **settings, **kl)
    expected = wide(result["gradient"])
    assert loss.item() == pytest.approx(result["loss"], rel=0, abs=1e-6)
    assert_close(gradient, expected, rtol=0, atol=1e-6)
    assert expected.abs().max() > 1e-3  # there was something to agree on
    assert not kl or (ours(name, batch)[1] - expected).abs().max() > 1e-3


def test_every_method_and_every_estimator_has_a_framework_to_agree_with():
    """`use_bias_correction_kl` off and on in TRL; verl's four."""
    assert FROZEN["versions"] == {"trl": "1.16.0", "verl": "0.9.1"}
    methods = {(r["framework"], r["algorithm"]) for r in FROZEN["results"]}
    both = "ppo grpo dr_grpo dapo gspo cispo gmpo sapo".split()
    assert methods == {*product(("trl", "verl"), both), ("verl", "gspo_token")}
    found = {(r["framework"], r["estimator"], r["algorithm"]) for r in KL["results"]}
    pairs = {("trl", "k3"), ("trl", "unbiased_k3")}
    pairs |= {("verl", name) for name in ("k1", "k2", "k3", "k3+")}
    assert found == {(*pair, name) for pair in pairs for name in ("grpo", "dapo")}
    assert {estimator for _, estimator in pairs} == set(ESTIMATORS)
