"""A mixture's experts in autocast."""

import torch

from experiments.gpu import experts
from tests.worlds import random_moe


def test_experts_learn_in_autocasts_dtype():
    """Their weights and gradients stay float32."""
    model, slopes, ids = random_moe(), [], torch.arange(3, 15).view(2, 6)
    stacked = [p for p in model.parameters() if p.ndim == 3]
    for choose in (lambda m: m.set_experts_implementation("grouped_mm"), experts.use):
        choose(model)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(ids, labels=ids).loss
        every = torch.autograd.grad(loss, stacked)
        assert {x.dtype for x in (*every, *stacked)} == {torch.float32}
        slopes.append(torch.cat([x.flatten() for x in every]))
    gap = (slopes[1] - slopes[0]).norm() / slopes[0].norm()
    assert 1e-4 < gap < 0.05
