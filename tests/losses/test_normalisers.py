"""The four normalisers: hand values, weights, slices, padding, errors."""

import math

import numpy as np
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

pytestmark = pytest.mark.usefixtures("float64")
every = pytest.mark.parametrize("name", NORMALISERS)


def mask_of(lengths, width=None):
    width = max(lengths) if width is None else width
    return (torch.arange(width) < tensor(lengths)[:, None]).double()


def weight_by(name, mask, group=None, max_length=6):
    group = torch.zeros(len(mask), dtype=torch.long) if group is None else group
    return apply(NORMALISERS[name], mask, group=group, max_length=max_length)


# Lengths 10, 2, 3, 30 with Â = 1, −1, 0.7, −0.7; at r = 1 the loss of a token is −Â.
# The first two rows answer one prompt, the last two another; max_length is 40.
BY_HAND = {
    # the mean of a row is its −Â: (−1 + 1 − 0.7 + 0.7)/4
    "seq_mean_token_mean": 0.0,
    # (−10 + 2)/12 and (−2.1 + 21)/33, then the mean of the two
    "group_token_mean": (-8 / 12 + 18.9 / 33) / 2,
    # (−10 + 2 − 2.1 + 21)/45
    "token_mean": 10.9 / 45,
    # 10.9/(4 · 40)
    "constant": 10.9 / 160,
}


def test_the_names_mean_the_functions():
    assert list(NORMALISERS.values()) == [
        seq_mean_token_mean,
        group_token_mean,
        token_mean,
        constant,
    ]
    assert all(name == function.__name__ for name, function in NORMALISERS.items())


def test_four_normalisers_give_four_losses():
    mask = mask_of([10, 2, 3, 30])
    per_token = -tensor([[1.0], [-1.0], [0.7], [-0.7]]) * mask
    losses = {
        name: (per_token * weight_by(name, mask, tensor([4, 4, 9, 9]), 40)).sum()
        for name in NORMALISERS
    }
    assert {name: round(loss.item(), 12) for name, loss in losses.items()} == {
        name: round(value, 12) for name, value in BY_HAND.items()
    }
    assert len({round(value, 4) for value in BY_HAND.values()}) == 4


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("seq_mean_token_mean", [1 / 9, 1 / 3, 1 / 6]),  # 1/(B |o_i|)
        ("group_token_mean", [2 / 3 / 4, 2 / 3 / 4, 1 / 3 / 2]),  # see below
        ("token_mean", [1 / 6, 1 / 6, 1 / 6]),  # 1/Σ|o|
        ("constant", [1 / 15, 1 / 15, 1 / 15]),  # 1/(B · 5)
    ],
)
def test_the_weight_of_a_token(name, expected):
    """Rows of 3, 1, 2 tokens; rows 0 and 1 form a group of 4 tokens, row 2 one of 2.

    Groups of unequal size count by their responses: 2/3 and 1/3.
    """
    mask = mask_of([3, 1, 2])
    weight = weight_by(name, mask, tensor([8, 8, 1]), max_length=5)
    assert_close(weight, mask * tensor(expected)[:, None], rtol=0, atol=1e-15)


def test_dr_grpos_constant_is_exactly_max_length():
    """1/(B max_length) to the last bit: not of the longest response, not off by one."""
    mask = mask_of([3, 1, 2, 3])
    for max_length in (3, 4, 7, 3000):
        weight = constant(mask, max_length)
        assert weight[mask.bool()].unique().tolist() == [1 / (4 * max_length)]
    assert constant(mask_of([1], width=8), 1).sum() == 1  # tokens count, not columns


def test_equal_groups_are_averaged_with_equal_weight():
    """Two groups of two rows: the mean of the groups' token means 2 and 5."""
    per_token = tensor([[1.0, 1.0], [4.0, 0.0], [5.0, 5.0], [5.0, 5.0]])
    weight = group_token_mean(mask_of([2, 1, 2, 2]), tensor([0, 0, 1, 1]))
    assert (per_token * weight).sum().item() == pytest.approx((2 + 5) / 2, abs=1e-15)


@every
def test_one_token(name):
    """One row, one token: its weight is 1, if max_length is 1."""
    assert weight_by(name, torch.ones(1, 1), max_length=1).item() == 1


@pytest.mark.parametrize("name", ["seq_mean_token_mean", "token_mean"])
def test_the_weights_of_a_mean_sum_to_one(name):
    assert weight_by(name, mask_of([3, 1, 5])).sum().item() == pytest.approx(1)


@every
def test_a_batch_of_nothing_has_no_weight(name):
    """Zeros, and no NaN from a division by zero tokens."""
    assert weight_by(name, torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2
    empty = torch.zeros(0, 3)
    assert weight_by(name, empty).shape == empty.shape


@every
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16])
def test_a_mask_of_any_type_counts_alike(name, dtype):
    """Counted in float32 at least: bfloat16 knows no number between 256 and 258."""
    mask = mask_of([257, 1])
    weight = weight_by(name, mask.to(dtype), max_length=300)
    assert weight.dtype == torch.float32
    expected = weight_by(name, mask, max_length=300)
    assert_close(weight, expected.float(), rtol=1e-6, atol=0)


# Gradient accumulation: slices of one weight


@st.composite
def batches(draw):
    """Per-token losses, mask, ids of shuffled groups; one row is never empty."""
    size = draw(st.integers(2, 8))
    group = [draw(st.integers(0, 3)) for _ in range(size)]
    lengths = [draw(st.integers(0, 6)) for _ in group]
    lengths[draw(st.integers(0, size - 1))] = 6
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    per_token = torch.randn(size, 6, generator=generator)
    return per_token, mask_of(lengths), tensor(group)


@every
@given(batch=batches(), data=st.data())
def test_slices_sum_to_the_whole_wherever_they_are_cut(name, batch, data):
    """By rows, in any order, through groups; and even by columns."""
    per_token, mask, group = batch
    weight = weight_by(name, mask, group)
    whole = (per_token * weight).sum()
    order = tensor(data.draw(st.permutations(range(len(mask)))))
    for parts, dim in ((order, 0), (torch.arange(6), 1)):
        size = data.draw(st.integers(1, len(parts)))
        pieces = [
            (per_token.index_select(dim, i) * weight.index_select(dim, i)).sum()
            for i in parts.split(size)
        ]
        assert_close(sum(pieces), whole, rtol=0, atol=1e-12)


def test_a_mean_of_means_is_not_the_mean():
    """1, 1, 1 and 5: the mean is 2; the mean of the micro-batches' means is 3."""
    per_token, mask = tensor([[1.0, 1.0, 1.0], [5.0, 0.0, 0.0]]), mask_of([3, 1])
    weight = token_mean(mask)
    means = [(per_token[[i]] * token_mean(mask[[i]])).sum() for i in (0, 1)]
    shares = [(per_token[[i]] * weight[[i]]).sum() for i in (0, 1)]
    assert (per_token * weight).sum().item() == 2
    assert sum(means).item() / 2 == 3
    assert sum(shares).item() == 2


# Invariance


@every
@given(batch=batches(), extra=st.integers(1, 4), data=st.data())
def test_padding_and_order_of_rows_do_not_matter(name, batch, extra, data):
    _, mask, group = batch
    weight = weight_by(name, mask, group)
    wider = torch.cat([mask, torch.zeros(len(mask), extra)], 1)
    padded = weight_by(name, wider, group)
    assert torch.equal(padded[:, :6], weight)
    assert padded[:, 6:].abs().max() == 0
    i = tensor(data.draw(st.permutations(range(len(mask)))))
    assert_close(weight_by(name, mask[i], group[i]), weight[i], rtol=0, atol=1e-15)


@every
@given(batch=batches(), data=st.data())
def test_a_mask_with_holes_counts_its_tokens(name, batch, data):
    """Tokens moved to the right, past holes: the same weight on each of them."""
    _, mask, group = batch
    holed = mask[:, tensor(data.draw(st.permutations(range(6))))]
    weight, moved = weight_by(name, mask, group), weight_by(name, holed, group)
    assert_close(moved.amax(-1), weight.amax(-1), rtol=0, atol=0)
    assert torch.equal(moved != 0, holed.bool())
    assert_close(moved.sum(-1), weight.sum(-1), rtol=0, atol=1e-15)


def test_an_empty_row_still_counts_as_a_response():
    """The paper's 1/G: rows of means 2 and 4 and an empty one give (2 + 4 + 0)/3."""
    per_token, mask = tensor([[2.0], [4.0], [7.0]]), tensor([[1.0], [1.0], [0.0]])

    def loss(weight):
        return (per_token * weight).sum().item()

    assert loss(seq_mean_token_mean(mask)) == pytest.approx(2.0)
    assert loss(token_mean(mask)) == pytest.approx(3.0)
    assert loss(constant(mask, 2)) == pytest.approx(6 / (3 * 2))
    # two groups, {2} and {4, empty}: 1/3 of the first's mean, 2/3 of the second's
    grouped = loss(group_token_mean(mask, tensor([0, 1, 1])))
    assert grouped == pytest.approx(2 / 3 + 4 * 2 / 3)


def test_an_empty_row_of_its_own_leaves_the_others_as_they_are():
    """Only by count: the weights shrink by 3/4 where rows are counted."""
    mask = mask_of([3, 1, 2])
    more = torch.cat([mask, torch.zeros(1, 3)])
    for name in NORMALISERS:
        group = tensor([0, 0, 0, 9])
        weight, again = weight_by(name, mask), weight_by(name, more, group)
        share = 1 if name == "token_mean" else 3 / 4
        assert_close(again[:-1], share * weight, rtol=0, atol=1e-15)
        assert again[-1].tolist() == [0.0] * 3


# Errors


@every
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(3), r"mask must have shape \(B, T\), got \(3,\)"),
        (torch.full((2, 3), 0.5), "mask must hold only 0 and 1"),
        (torch.full((2, 3), math.nan), "mask must hold only 0 and 1"),
        (torch.full((2, 3), 2), "mask must hold only 0 and 1"),
    ],
)
def test_a_malformed_mask(name, mask, message):
    with pytest.raises(ValueError, match=message):
        weight_by(name, mask)


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


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (tensor([0, 0, 1]), r"group must have shape \(B,\) = \(2,\), got \(3,\)$"),
        (tensor([0.0, 1.0]), "group must hold whole numbers, got torch.float32$"),
        (None, "group must be a tensor, got NoneType; torch.as_tensor"),
    ],
)
def test_group_must_name_every_row(group, message):
    with pytest.raises(ValueError, match=message):
        group_token_mean(torch.ones(2, 1), group)


@pytest.mark.parametrize("max_length", [0, -1, 1, 1.5])
def test_constant_needs_a_length_no_response_exceeds(max_length):
    with pytest.raises(ValueError, match="longest response") as caught:
        constant(torch.ones(1, 2), max_length)
    assert str(caught.value) == (
        "max_length must be a number at least as large as the longest response "
        f"(2 tokens), got {max_length}"
    )


@pytest.mark.parametrize("max_length", [None, math.nan, math.inf, "4"])
def test_constant_needs_a_length_that_is_a_number(max_length):
    message = rf"^max_length must be a (finite )?number, got '?{max_length}'?$"
    with pytest.raises(ValueError, match=message):
        constant(torch.ones(1, 2), max_length)


def test_constant_needs_a_positive_length_even_for_an_empty_batch():
    with pytest.raises(ValueError, match=r"at least as large .*, got 0$"):
        constant(torch.zeros(1, 2), 0)


@pytest.mark.parametrize("length", [np.int64(5), np.float32(5), tensor(5)])
def test_a_numpy_or_torch_number_is_a_number(length):
    weight = constant(torch.ones(1, 2), length)
    assert torch.equal(weight, constant(torch.ones(1, 2), 5))
