"""Holes in the mask: what a tool wrote is read, and counts nowhere.

One property holds for every advantage and term: a row with holes gives what the same
row gives without them; of losses it is in `test_properties.py`, of corrections in
`test_corrections.py`, and GAE's numbers by hand are in `test_advantages.py`.
"""

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl import loss_terms
from refimpl.advantages import CRITIC_FREE, Scored, gae, token_rewards, whiten
from refimpl.kl import ESTIMATORS
from refimpl.logprobs import Reading
from refimpl.normalisers import token_mean
from refimpl.rollout import Batch
from tests.losses.batches import FLOAT64, mask_of, random_batch
from tests.worlds import rollout_of

pytestmark = FLOAT64
LENGTHS, GROUP = [5, 4, 7, 1], tensor([0, 0, 1, 1])
DICE = torch.Generator().manual_seed(0)
HOLED = (torch.rand(4, 14, generator=DICE).argsort(-1) < tensor(LENGTHS)[:, None]) * 1.0
NOISE = -3 * torch.randn(4, 14, generator=DICE).abs().double()


def spread(x: torch.Tensor) -> torch.Tensor:
    """Numbers of compact rows where HOLED is 1, and others in its holes."""
    return NOISE.masked_scatter(HOLED.bool(), x.detach()[mask_of(LENGTHS).bool()])


def both(*compact: torch.Tensor):
    """Rows as they are, with their mask, and with holes."""
    yield *compact, mask_of(LENGTHS)
    yield *map(spread, compact), HOLED.double()


TERMS = {name: loss_terms.KL(0.1, name) for name in ESTIMATORS}
TERMS |= {"entropy": loss_terms.Entropy(0.1)}


@pytest.mark.parametrize("name", [*TERMS, "value"])
def test_every_added_term_is_that_of_the_rows_without_holes(name):
    rows, found = [*random_batch(LENGTHS)[:3], random_batch(LENGTHS, 5)[2] / 4], []
    for logp, old, a, v, mask in both(*rows):
        logp = logp.detach().requires_grad_()
        more = {"ref_logp": old - v, "old_values": v, "targets": v + 0.3}
        counts = {"token_count": mask.sum(), "response_count": mask.new_tensor(4)}
        batch = Batch(rollout_of(mask, group=GROUP), mask, old, a, **more, **counts)
        critic = loss_terms.Value(lambda _, v=v, z=logp: v + z / 7)
        term = critic if name == "value" else TERMS[name]
        entropy = -logp / 2 * mask  # some number that depends on the policy
        loss, _ = term(batch, Reading(logp, entropy), token_mean(mask))
        found.append((loss, grad(loss, logp)[0][mask.bool()]))
    assert_close(*found, rtol=1e-12, atol=1e-12)
    assert found[0][1].any()


PAID = tensor([1.0, 0.0, 0.5, 2.0]).double()


@pytest.mark.parametrize("name", [*CRITIC_FREE, "gae", "whitened"])
def test_every_advantage_is_that_of_the_rows_without_holes(name):
    """With the reward on the last token of the policy, wherever that is."""
    estimator, found = {**CRITIC_FREE, "gae": gae, "whitened": gae}[name], []
    for values, mask in both(random_batch(LENGTHS, 3)[2]):
        parts = torch.stack([PAID, PAID**2], -1)
        scored = Scored(token_rewards(PAID, mask), GROUP, mask, values, 0.9, 0.8, parts)
        estimate = estimator(scored)
        estimate = whiten(estimate, mask) if name == "whitened" else estimate
        found.append(estimate.view(4, -1).expand_as(mask)[mask.bool()])
    assert_close(*found, rtol=1e-12, atol=1e-12)
