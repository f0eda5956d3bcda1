"""The four normalisers: hand values, weights, slices, padding, errors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from refimpl.normalisers import (
    NORMALISERS,
    apply,
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
        (seq_mean_token_mean, [1 / 9, 1 / 3, 1 / 6]),  # 1/(B |o_i|)
        (group_token_mean, [2 / 3 / 4, 2 / 3 / 4, 1 / 3 / 2]),  # see below
        (token_mean, [1 / 6, 1 / 6, 1 / 6]),  # 1/Σ|o|
        (constant, [1 / 15, 1 / 15, 1 / 15]),  # 1/(B · 5)
    ],
)
@pytest.mark.parametrize("width", [3, 7])
def test_the_weight_of_a_token(normaliser, expected, width):
    """Rows of 3, 1, 2 tokens; rows 0 and 1 form a group of 4 tokens, row 2 one of 2.

    Groups of unequal size count by their responses: 2/3 and 1/3.
    """
    mask = mask_of([3, 1, 2], width)
    weight = weight_by(normaliser, mask, tensor([8, 8, 1]), max_length=5)
    assert_close(weight, mask * tensor(expected)[:, None], **CLOSE)


@pytest.mark.parametrize(
    ("normaliser", "expected"),
    [
        (seq_mean_token_mean, (2 + 4 + 0) / 3),
        (token_mean, (2 + 4) / 2),
        (constant, (2 + 4) / (3 * 2)),
        # two groups, {2} and {4, empty}: 1/3 of the first's mean, 2/3 of the second's
        (group_token_mean, 2 / 3 + 4 * 2 / 3),
    ],
)
def test_an_empty_row_still_counts_as_a_response(normaliser, expected):
    """The paper's 1/G: rows of means 2 and 4 and an empty one."""
    per_token, mask = tensor([[2.0], [4.0], [7.0]]), tensor([[1.0], [1.0], [0.0]])
    weight = weight_by(normaliser, mask, tensor([0, 1, 1]), max_length=2)
    assert (per_token * weight).sum().item() == pytest.approx(expected)


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


# One of your own, and errors


def test_a_normaliser_is_given_what_it_asks_for():
    def by_length(mask, max_length):
        return mask / max_length

    def plain(mask):
        return 2 * mask

    mask, known = torch.ones(1, 2), {"group": tensor([0]), "max_length": 4}
    assert apply(by_length, mask, **known).tolist() == [[0.25, 0.25]]
    assert apply(plain, mask, **known).tolist() == [[2, 2]]


def test_what_a_normaliser_needs_is_named():
    mask = torch.ones(1, 1)
    with pytest.raises(ValueError, match="needs group") as caught:
        apply(group_token_mean, mask, max_length=3)
    assert str(caught.value) == (
        "the normaliser group_token_mean needs group: give "
        "weight=normalisers.group_token_mean(mask, group)"
    )
    with pytest.raises(ValueError, match=r"constant needs max_length: give weight="):
        apply(constant, mask, group=tensor([0]), max_length=None)


@pytest.mark.parametrize("max_length", [0, 1, 1.5])
def test_constant_needs_a_length_no_response_exceeds(max_length):
    with pytest.raises(ValueError, match="longest response") as caught:
        constant(torch.ones(1, 2), max_length)
    assert str(caught.value) == (
        "max_length must be a number at least as large as the longest response "
        f"(2 tokens), got {max_length}"
    )
