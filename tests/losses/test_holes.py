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
from refimpl.normalisers import NORMALISERS
from refimpl.rollout import Batch
from tests.losses.batches import FLOAT64, mask_of, random_batch, weight_by
from tests.worlds import rollout_of

pytestmark = FLOAT64
LENGTHS = [5, 4, 7, 1]
GROUP = tensor([0, 0, 1, 1])
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def holes(seed: int = 0) -> torch.Tensor:
    """A mask of 14 columns whose rows have as many ones as LENGTHS says."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(4, 14, generator=generator).argsort(-1)
    return (places < tensor(LENGTHS)[:, None]).double()


def spread(x: torch.Tensor, mask: torch.Tensor, seed: int = 9) -> torch.Tensor:
    """Put the numbers of compact rows where a mask is 1, and others in its holes."""
    noise = torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed)).abs()
    wide = -3 * noise.to(x)
    wide[mask.bool()] = x[mask_of(LENGTHS).bool()]
    return wide


def both(mask: torch.Tensor):
    """(logp, old_logp, advantages, mask), compact and with holes."""
    logp, old, advantages, compact = random_batch(LENGTHS)
    wide = [spread(x.detach(), mask) for x in (logp, old, advantages)]
    wide[0].requires_grad_()
    return (logp, old, advantages, compact), (*wide, mask)


def batch_of(logp, old, advantages, mask, value) -> tuple[Batch, Reading]:
    """A mini-batch, and the policy's pass over it."""
    rollout = rollout_of(mask, group=GROUP)
    more = {"ref_logp": old - value, "old_values": value, "targets": value + 0.3}
    counts = {"token_count": mask.sum(), "response_count": mask.new_tensor(4)}
    entropy = -logp / 2  # some number that depends on the policy
    batch = Batch(rollout, mask, old, advantages, **more, **counts)
    return batch, Reading(logp, entropy * mask)


TERMS = {name: loss_terms.KL(0.1, name) for name in ESTIMATORS}
TERMS |= {"entropy": loss_terms.Entropy(0.1)}


@pytest.mark.parametrize("name", [*TERMS, "value"])
def test_every_added_term_is_that_of_the_rows_without_holes(name):
    mask, value = holes(), random_batch(LENGTHS, 5)[2] / 4
    added = []
    for rows, v in zip(both(mask), (value, spread(value, mask)), strict=True):
        part, reading = batch_of(*rows, v)
        critic = loss_terms.Value(lambda _, v=v, z=rows[0]: v + z / 7)
        term = critic if name == "value" else TERMS[name]
        loss, _ = term(part, reading, weight_by(NORMALISERS["token_mean"], rows[3]))
        added.append((loss, grad(loss, rows[0])[0][rows[3].bool()]))
    assert_close(added[0][0], added[1][0], **CLOSE)
    assert_close(added[0][1], added[1][1], **CLOSE)
    assert added[0][1].any()


PAID = tensor([1.0, 0.0, 0.5, 2.0]).double()


@pytest.mark.parametrize("name", [*CRITIC_FREE, "gae", "whitened"])
def test_every_advantage_is_that_of_the_rows_without_holes(name):
    """With the reward on the last token of the policy, wherever that is."""
    masks, v, found = (mask_of(LENGTHS), holes()), random_batch(LENGTHS, 3)[2], []
    for mask, values in zip(masks, (v, spread(v, masks[1])), strict=True):
        parts = torch.stack([PAID, PAID**2], -1)
        scored = Scored(token_rewards(PAID, mask), GROUP, mask, values, 0.9, 0.8, parts)
        estimate = {**CRITIC_FREE, "gae": gae, "whitened": gae}[name](scored)
        if name == "whitened":
            estimate = whiten(estimate, mask)
        estimate = estimate if estimate.ndim == 2 else estimate[:, None].expand_as(mask)
        found.append(estimate[mask.bool()])
    assert_close(*found, **CLOSE)
