"""The four normalisers: weights by hand, padding, order, and one of your own.

What they refuse is in `tests/test_bad_input.py`."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from refimpl.normalisers import (
    NORMALISERS,
    constant,
    group_token_mean,
    seq_mean_token_mean,
    token_mean,
)
from tests.losses.batches import mask_of, weight_by

pytestmark = pytest.mark.usefixtures("float64")
every = pytest.mark.parametrize("normaliser", NORMALISERS.values(), ids=NORMALISERS)
CLOSE = {"rtol": 0, "atol": 1e-15}


@pytest.mark.parametrize(
    ("normaliser", "expected"),
    [
        (seq_mean_token_mean, [1 / 12, 1 / 4, 1 / 8, 0]),  # 1/(B |o_i|)
        (group_token_mean, [3 / 4 / 4, 3 / 4 / 4, 1 / 4 / 2, 0]),  # see below
        (token_mean, [1 / 6, 1 / 6, 1 / 6, 0]),  # 1/Σ|o|
        (constant, [1 / 20, 1 / 20, 1 / 20, 0]),  # 1/(B · 5)
    ],
)
@pytest.mark.parametrize("width", [3, 7])
def test_the_weight_of_a_token(normaliser, expected, width):
    """Rows of 3, 1, 2 and 0 tokens; all but row 2 form a group of 4 tokens.

    Groups of unequal size count by their responses: 3/4 and 1/4. An empty row is a
    response as well (the papers' 1/G), and weighs nothing.
    """
    mask = mask_of([3, 1, 2, 0], width)
    weight = weight_by(normaliser, mask, tensor([8, 8, 1, 8]), max_length=5)
    assert_close(weight, mask * tensor(expected)[:, None], **CLOSE)


@every
def test_one_token_and_none(normaliser):
    """A weight of 1, if max_length is 1; zeros, and no NaN, where there is no token."""
    assert weight_by(normaliser, torch.ones(1, 1), max_length=1).item() == 1
    assert weight_by(normaliser, torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2
    assert weight_by(normaliser, torch.zeros(0, 3)).shape == (0, 3)
    assert weight_by(normaliser, mask_of([1], width=8), max_length=1).sum() == 1


@every
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16])
def test_a_mask_of_any_type_counts_alike(normaliser, dtype):
    """Counted in float32 at least: bfloat16 knows no number between 256 and 258."""
    mask = mask_of([257, 1])
    weight = weight_by(normaliser, mask.to(dtype), max_length=300)
    assert weight.dtype == torch.float32
    expected = weight_by(normaliser, mask, max_length=300)
    assert_close(weight, expected.float(), rtol=1e-6, atol=0)


@st.composite
def masks(draw):
    """A mask and the ids of shuffled groups; one row is never empty."""
    size = draw(st.integers(2, 8))
    lengths = [draw(st.integers(0, 6)) for _ in range(size)]
    lengths[draw(st.integers(0, size - 1))] = 6
    return mask_of(lengths), tensor([draw(st.integers(0, 3)) for _ in range(size)])


@every
@given(batch=masks(), data=st.data())
def test_padding_order_and_holes_do_not_matter(normaliser, batch, data):
    """A row's tokens may stand anywhere: the same weight on each of them."""
    mask, group = batch
    weight = weight_by(normaliser, mask, group)
    wider = torch.cat([mask, torch.zeros(len(mask), 2)], 1)
    holed = wider[:, tensor(data.draw(st.permutations(range(8))))]
    order = tensor(data.draw(st.permutations(range(len(mask)))))
    moved = weight_by(normaliser, holed[order], group[order])
    assert torch.equal(moved != 0, holed[order].bool())
    assert_close(moved, holed[order] * weight.amax(-1)[order, None], **CLOSE)
