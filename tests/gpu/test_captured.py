"""The decode step in a graph, on the CPU: see graphs.py."""

import pytest
import torch

from experiments.gpu import captured
from experiments.gpu.captured import Captured
from refimpl import log_probs
from refimpl.pretrained.fast import Direct
from tests.gpu.graphs import CUDA, Graph
from tests.rollout.test_decoding import drawn
from tests.worlds import random_model


@pytest.mark.parametrize(("few", "graphs"), [(0, range(2, 8)), (128, [1])])
def test_a_graph_draws_what_single_steps_do(few, graphs, monkeypatch):
    """Until half are gone, all rows stay where they are; few stay there to the end."""
    monkeypatch.setattr(captured, "FEW", few)
    for name, value in CUDA.items():
        monkeypatch.setattr(torch.cuda, name, value)
    made, model = Graph.made, random_model().double()
    single, rollout = (drawn(model, kind, monkeypatch) for kind in (Direct, Captured))
    assert Graph.made - made in graphs
    logp, entropy = log_probs(model, rollout, 3.0)
    assert (logp - rollout.logp).abs().max() < 1e-6
    assert (entropy - rollout.entropy).abs().max() < 1e-6
    assert torch.equal(rollout.ids, single.ids)
    assert (rollout.mask.diff() <= 0).all() and rollout.truncated.any()
