"""Our losses and gradients against TRL's and verl's, frozen in references.json.

`make_references.py` wrote the file; it needs both frameworks, these tests neither.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from refimpl.algorithms import ALGORITHMS
from refimpl.kl import ESTIMATORS, LOG_RATIO_LIMIT
from refimpl.normalisers import apply, constant

FROZEN = json.loads((Path(__file__).parent / "references.json").read_text())
KL = FROZEN["kl"]
CLOSE = {"rtol": 0, "atol": 1e-6}


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
    return loss, torch.autograd.grad(loss, logp)[0]


@pytest.mark.parametrize("result", FROZEN["results"], ids=title)
def test_loss_and_gradient_are_the_frameworks(result):
    loss, gradient = ours(
        result["algorithm"], result["batch"], **result["hyperparameters"]
    )
    expected = wide(result["gradient"])
    assert loss.item() == pytest.approx(result["loss"], rel=0, abs=1e-6)
    assert_close(gradient, expected, **CLOSE)
    assert expected.abs().max() > 1e-3  # there was something to agree on


def test_every_method_of_both_frameworks_is_there():
    found = {(r["framework"], r["algorithm"]) for r in FROZEN["results"]}
    both = {"ppo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "gmpo", "sapo"}
    expected = {(f, name) for f in ("trl", "verl") for name in both}
    assert found == expected | {("verl", "gspo_token")}
    assert FROZEN["versions"] == {"trl": "1.16.0", "verl": "0.9.1"}


def test_the_frozen_batches_tell_the_methods_apart():
    """Another method's gradient would be seen at once."""
    settings = {"dr_grpo": {"max_length": 12}, "cispo": {"max_ratio": 1.28}}
    names = ("ppo", "grpo", "dr_grpo", "gspo", "dapo", "cispo", "gmpo", "sapo")
    gradients = [ours(name, 0, **settings.get(name, {}))[1] for name in names]
    for i, one in enumerate(gradients):
        for other in gradients[:i]:
            assert (one - other).abs().max() > 1e-3


# With a KL to a reference policy: loss = policy_loss + β Σ weight · estimator


@pytest.mark.parametrize("result", KL["results"], ids=title)
def test_a_loss_with_kl_and_its_gradient_are_the_frameworks(result):
    batch, name = result["batch"], result["algorithm"]
    loss, gradient = ours(name, batch, result["estimator"], result["beta"])
    expected = wide(result["gradient"])
    assert loss.item() == pytest.approx(result["loss"], rel=0, abs=1e-6)
    assert_close(gradient, expected, **CLOSE)
    assert (ours(name, batch)[1] - expected).abs().max() > 1e-3  # the KL is in it


def test_every_estimator_has_a_framework_to_agree_with():
    """`use_bias_correction_kl` off and on in TRL; verl's four."""
    found = {(r["framework"], r["estimator"], r["algorithm"]) for r in KL["results"]}
    pairs = {("trl", "k3"), ("trl", "unbiased_k3")}
    pairs |= {("verl", name) for name in ("k1", "k2", "k3", "k3+")}
    assert found == {(*pair, name) for pair in pairs for name in ("grpo", "dapo")}
    assert {name for _, name in pairs} == set(ESTIMATORS)


@pytest.mark.parametrize("batch", [0, 1])
def test_the_frozen_batches_tell_the_estimators_apart(batch):
    """Also the second, where every ratio is 1 within 1 %."""
    gradients = [ours("grpo", batch, name, beta=0.3)[1] for name in ESTIMATORS]
    for i, one in enumerate(gradients):
        for name, other in list(zip(ESTIMATORS, gradients, strict=True))[:i]:
            # k3+ has k2's gradient; only its value is another
            same = {name, list(ESTIMATORS)[i]} == {"k2", "k3+"}
            assert ((one - other).abs().max() < 1e-12) == same


@pytest.mark.parametrize("name", KL["verl"]["estimators"])
def test_an_estimator_is_verls_wherever_verl_does_not_clamp(name):
    """verl holds k3 at 10, without a gradient: ours goes on, up to e^20."""
    frozen, d = KL["verl"]["estimators"][name], wide(KL["verl"]["distances"])
    logp, zero = d.clone().requires_grad_(), torch.zeros_like(d)
    value = ESTIMATORS[name](logp, zero, d)
    (slope,) = torch.autograd.grad(value.sum(), logp)
    clamped = (wide(frozen["value"]) == 10) if name.startswith("k3") else d != d
    assert clamped.sum() == (3 if name.startswith("k3") else 0)
    free = ~clamped
    assert_close(value[free], wide(frozen["value"])[free], rtol=1e-12, atol=1e-12)
    assert_close(slope[free], wide(frozen["gradient"])[free], rtol=1e-12, atol=1e-12)
    if name == "k3":
        here = d[clamped].clamp(min=-LOG_RATIO_LIMIT)
        assert_close(value[clamped], (-here).exp() - 1 + here)
        assert (wide(frozen["gradient"])[clamped] == 0).all()
        assert (slope[clamped] != 0).tolist() == [False, True, True]  # −25, −6, 15
