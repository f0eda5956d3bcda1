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

FROZEN = json.loads((Path(__file__).parent / "references.json").read_text())
CLOSE = {"rtol": 0, "atol": 1e-6}


def title(result: dict) -> str:
    settings = "-".join(f"{k}={v}" for k, v in result["hyperparameters"].items())
    parts = (result["framework"], result["algorithm"], settings, str(result["batch"]))
    return "-".join(part for part in parts if part)


def ours(name: str, batch: int, **hyperparameters):
    """(loss, gradient) on a frozen batch."""
    data = {
        k: tensor(v, dtype=torch.float64) for k, v in FROZEN["batches"][batch].items()
    }
    logp = data.pop("logp").requires_grad_()
    loss = ALGORITHMS[name].policy_loss(logp, **data, **hyperparameters).loss
    return loss, torch.autograd.grad(loss, logp)[0]


@pytest.mark.parametrize("result", FROZEN["results"], ids=title)
def test_loss_and_gradient_are_the_frameworks(result):
    loss, gradient = ours(
        result["algorithm"], result["batch"], **result["hyperparameters"]
    )
    expected = tensor(result["gradient"], dtype=torch.float64)
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
