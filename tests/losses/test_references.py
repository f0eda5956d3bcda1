"""Our losses and gradients against TRL's and verl's, frozen in references.json.

`tests/bridges/report.py` wrote the file; it needs both frameworks, these tests neither.
"""

import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from refimpl.interop.conformance.cases import cases

FROZEN = json.loads((Path(__file__).parent / "references.json").read_text())
CASES = {case.name: case for case in cases()}
IDS = [f"{known['framework']} | {known['case']}" for known in FROZEN]


@pytest.mark.parametrize("known", FROZEN, ids=IDS)
def test_loss_and_gradient_are_the_frameworks(known):
    """Every setting that they have: normalisers, bounds, truncated weights, KL."""
    case = CASES[known["case"]]
    gradient = torch.tensor(known["gradient"], dtype=torch.float64)
    assert case.loss == pytest.approx(known["loss"], rel=0, abs=1e-6)
    assert_close(case.gradient, gradient, rtol=0, atol=1e-6)
    assert gradient.abs().max() > 1e-3  # there was something to agree on
