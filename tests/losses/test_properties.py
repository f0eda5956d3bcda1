"""What holds for every method, whatever the numbers are.

Tests over `ALGORITHMS` hold for any method, also one registered tomorrow; tables hold
for the names that are in them.
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl.advantages import CRITIC_FREE, Scored
from refimpl.normalisers import NORMALISERS
from tests.losses.batches import (
    EXACT,
    FLOAT64,
    NAN,
    every,
    loss_and_slope,
    mask_of,
    random_batch,
    weight_by,
)

pytestmark = FLOAT64


@st.composite
def batches(draw):
    """1–4 rows of 0–5 tokens; advantages per token or per response; a weight."""
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    logp, old_logp, a, mask = random_batch([*lengths, 1], draw(st.integers(0, 999)))
    group = tensor(draw(st.lists(st.integers(0, 1), min_size=5, max_size=5)))
    kind = draw(st.sampled_from([*NORMALISERS.values()]))
    weight = weight_by(kind, mask, group[: len(mask)])
    advantages = draw(st.sampled_from([a, a[:, :1].expand_as(a)]))
    return logp, old_logp, advantages, mask, weight


@every
@settings(max_examples=15)
@given(batch=batches(), data=st.data())
def test_where_tokens_stand_and_in_which_part_changes_nothing(algorithm, batch, data):
    """Columns anywhere that hold NaN and no token, a row of nothing, rows in any order,
    and micro-batches of them: the same loss, and the same gradient on each token."""
    logp, *others, mask, weight = batch
    loss, slope = loss_and_slope(algorithm, *batch)
    rows, width = mask.shape
    places = tensor(data.draw(st.permutations(range(width + 3))))[:width]
    order = tensor(data.draw(st.permutations(range(rows + 1))))

    def moved(x, filler=NAN):
        wide = torch.full((rows + 1, width + 3), filler)
        wide[:rows, places] = torch.where(mask.bool(), x.detach(), filler)
        return wide[order]

    leaf = moved(logp).requires_grad_()
    whole = leaf, *map(moved, others), moved(mask, 0.0), moved(weight)
    parts = order.new_tensor(range(rows + 1)).split(data.draw(st.integers(1, rows + 1)))
    each = [algorithm.policy_loss(*(x[part] for x in whole)) for part in parts]
    assert all(math.isfinite(x) for one in each for x in one.metrics.values())
    total = sum(one.loss for one in each)
    assert_close(total.detach(), loss, **EXACT)
    assert_close(grad(total, leaf)[0], moved(slope, 0.0), **EXACT)
    before = algorithm.policy_loss(*batch).metrics
    assert algorithm.policy_loss(*whole).metrics == pytest.approx(before)


@every
def test_half_precision_is_that_of_the_rounded_numbers(algorithm):
    """Float32 and wider inputs agree up to rounding; bfloat16 is raised at once. A mask
    may be of any type."""
    *numbers, mask = random_batch([5, 2, 4, 1, 3], spread=0.3)

    def at(kind, numbers):
        logp, *others = (x.detach().to(kind) for x in numbers)
        found = loss_and_slope(algorithm, logp.requires_grad_(), *others, mask)
        return [x.double() for x in found]

    kinds = torch.float64, torch.bool, torch.int64
    given = [(*numbers, mask.to(kind), mask / 9) for kind in kinds]
    slopes = [loss_and_slope(algorithm, *batch)[1] for batch in given]
    assert all(torch.equal(slope, slopes[0]) for slope in slopes)
    half = [x.bfloat16() for x in numbers]
    assert at(torch.bfloat16, half)[0] == at(torch.float32, half)[0]
    for narrow, wide in zip(at(torch.bfloat16, half), at(torch.float32, half)):
        assert_close(narrow, wide, rtol=1e-2, atol=1e-3)
    for narrow, wide in zip(at(torch.float32, numbers), at(torch.float64, numbers)):
        assert_close(narrow, wide, rtol=1e-4, atol=1e-5)


OF_THE_SIZE = {"maxrl", "reinforce_plus_plus", "batch_centred", "batch_std"}
"""Estimators that compare rewards across prompts, or with 0."""


@pytest.mark.parametrize("name", CRITIC_FREE)
@given(data=st.data())
@settings(max_examples=15)
def test_an_advantage_follows_its_row_and_forgets_what_a_prompt_pays_all(name, data):
    """Rows in any order, prompts of any name, and a bonus for each prompt."""
    dice = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    group = tensor(data.draw(st.permutations([0, 0, 0, 1, 1, 1, 1, 2, 2])))
    parts = torch.rand(9, 2, generator=dice)
    mask = mask_of([3, 1, 2, 5, 1, 4, 2, 2, 3])
    scored = Scored(parts.sum(-1), group, mask, components=parts)
    order = tensor(data.draw(st.permutations(range(9))))
    names = tensor(data.draw(st.permutations([-7, 3, 40])))
    bonus = torch.zeros(9) if name in OF_THE_SIZE else tensor([0.5, -1.0, 3.0])[group]
    paid = parts + bonus[:, None] / 2
    other = replace(
        scored,
        rewards=(parts.sum(-1) + bonus)[order],
        group=names[group][order],
        mask=mask[order],
        components=paid[order],
    )
    estimate = CRITIC_FREE[name]
    assert_close(estimate(other), estimate(scored)[order], rtol=1e-9, atol=1e-9)
