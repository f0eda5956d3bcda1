"""Holes in the mask: what a tool wrote is read, and counts nowhere.

One property holds for every advantage, term and correction: a row with holes gives what
the same row gives without them; of losses it is in `test_properties.py`, and GAE's
numbers by hand are in `test_advantages.py`.
"""

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl import corrections, loss_terms
from refimpl.advantages import CRITIC_FREE, Scored, gae, token_rewards, whiten
from refimpl.algorithms import LossInputs
from refimpl.history import Meter, mean_over
from refimpl.kl import ESTIMATORS
from refimpl.logprobs import Reading
from refimpl.normalisers import NORMALISERS
from refimpl.rollout import Batch, Rollout
from tests.losses.batches import FLOAT64, mask_of, random_batch, weight_by

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
    ids = torch.ones(len(mask), mask.shape[1] + 1, dtype=torch.long)
    start, nothing = torch.ones(len(mask), dtype=torch.long), torch.zeros(len(mask))
    rollout = Rollout(ids, start, mask, old - value / 9, old, nothing.bool(), GROUP)
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


BOUNDS = {name: 0.3 for name in corrections.RULES} | {
    name: 1.1
    for name in corrections.RULES
    if name.split("_")[-1] in ("truncate", "mask", "reject")
}


@pytest.mark.parametrize("rule", corrections.RULES)
def test_every_correction_is_that_of_the_rows_without_holes(rule):
    mask, value = holes(), random_batch(LENGTHS, 5)[2]
    found = []
    for rows, v in zip(both(mask), (value, spread(value, mask)), strict=True):
        part, reading = batch_of(*rows, v)
        correct = loss_terms.SamplerMismatch({rule: BOUNDS[rule]})
        inputs = LossInputs(*rows, rows[3].clone(), {})
        made = correct(part, reading, inputs)
        told = [*made.metrics.values()]
        found.append((made.weight[rows[3].bool()], torch.stack(told)))
    for left, right in zip(*found, strict=True):
        assert_close(left, right, **CLOSE)


def test_metrics_are_those_of_the_rows_without_holes():
    mask, told = holes(), []
    for logp, old, advantages, m in both(mask):
        part, _ = batch_of(logp, old, advantages, m, torch.zeros_like(m))
        meter = Meter()
        meter.add(part, logp, logp.sum() * 0, {})
        meter.end_update(torch.zeros(()))
        told.append(meter.read() | {"entropy": mean_over(-old * m, m)})
    assert told[0] == pytest.approx(told[1])


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
