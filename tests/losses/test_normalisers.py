"""The four normalisers: hand values, weights, micro-batches, padding, errors."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl.normalisers import AGGREGATIONS, aggregate

pytestmark = pytest.mark.usefixtures("float64")


def mask_of(lengths, width=None):
    width = max(lengths) if width is None else width
    return (torch.arange(width) < tensor(lengths)[:, None]).double()


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


def test_four_normalisers_give_four_losses():
    mask = mask_of([10, 2, 3, 30])
    per_token = -tensor([[1.0], [-1.0], [0.7], [-0.7]]) * mask
    settings = {"group": tensor([4, 4, 9, 9]), "max_length": 40}
    losses = {how: aggregate(per_token, mask, how, **settings) for how in AGGREGATIONS}
    assert {how: round(loss.item(), 12) for how, loss in losses.items()} == {
        how: round(value, 12) for how, value in BY_HAND.items()
    }
    assert len({round(value, 4) for value in BY_HAND.values()}) == 4


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("seq_mean_token_mean", [1 / 9, 1 / 3, 1 / 6]),  # 1/(B |o_i|)
        ("group_token_mean", [2 / 3 / 4, 2 / 3 / 4, 1 / 3 / 2]),  # see below
        ("token_mean", [1 / 6, 1 / 6, 1 / 6]),  # 1/Σ|o|
        ("constant", [1 / 15, 1 / 15, 1 / 15]),  # 1/(B · 5)
    ],
)
def test_the_weight_of_a_token(how, expected):
    """Rows of 3, 1, 2 tokens; rows 0 and 1 form a group of 4 tokens, row 2 one of 2.

    Groups of unequal size count by their responses: 2/3 and 1/3.
    """
    mask = mask_of([3, 1, 2])
    per_token = torch.randn(3, 3, requires_grad=True)
    loss = aggregate(per_token, mask, how, group=tensor([8, 8, 1]), max_length=5)
    (weight,) = grad(loss, per_token)
    assert_close(weight, mask * tensor(expected)[:, None], rtol=0, atol=1e-15)


def test_equal_groups_are_averaged_with_equal_weight():
    """Two groups of two rows: the mean of the groups' token means 2 and 5."""
    per_token = tensor([[1.0, 1.0], [4.0, 0.0], [5.0, 5.0], [5.0, 5.0]])
    mask = mask_of([2, 1, 2, 2])
    loss = aggregate(per_token, mask, "group_token_mean", group=tensor([0, 0, 1, 1]))
    assert loss.item() == pytest.approx((2 + 5) / 2, abs=1e-15)


def test_one_token():
    """One row, one token: all four are that token, if max_length is 1."""
    for how in AGGREGATIONS:
        settings = {"group": tensor([0]), "max_length": 1}
        assert (
            aggregate(tensor([[0.3]]), tensor([[1.0]]), how, **settings).item() == 0.3
        )


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e300])
def test_padding_has_no_value_and_no_gradient(how, garbage):
    per_token = tensor([[1.0, 2.0], [3.0, garbage]], requires_grad=True)
    settings = {"group": tensor([0, 0]), "max_length": 2}
    loss = aggregate(per_token, mask_of([2, 1]), how, **settings)
    clean = tensor([[1.0, 2.0], [3.0, 0.0]])
    assert loss.item() == aggregate(clean, mask_of([2, 1]), how, **settings).item()
    assert grad(loss, per_token)[0][1, 1].item() == 0


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_a_batch_of_nothing_is_zero(how):
    per_token = torch.ones(2, 3, requires_grad=True)
    settings = {"group": tensor([0, 0]), "max_length": 3}
    loss = aggregate(per_token, torch.zeros(2, 3), how, **settings)
    assert loss.item() == 0
    assert grad(loss, per_token)[0].abs().max() == 0


@pytest.mark.parametrize("how", AGGREGATIONS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_int_and_bool_masks_count_like_floats(how, dtype):
    per_token, mask = tensor([[1.0, 2.0], [4.0, 8.0]]), mask_of([2, 1])
    settings = {"group": tensor([0, 0]), "max_length": 2}
    expected = aggregate(per_token, mask, how, **settings)
    assert_close(aggregate(per_token, mask.to(dtype), how, **settings), expected)


# Gradient accumulation


@st.composite
def batches(draw):
    """Per-token losses, mask, whole groups of 1–3 rows; one row is never empty."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    group = [i for i, n in enumerate(sizes) for _ in range(n)]
    lengths = [draw(st.integers(0, 6)) for _ in group]
    lengths[draw(st.integers(0, len(group) - 1))] = 6
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    per_token = torch.randn(len(group), 6, generator=generator)
    return per_token, mask_of(lengths), tensor(group)


@pytest.mark.parametrize("how", AGGREGATIONS)
@given(batch=batches(), cut=st.integers(0, 2))
def test_micro_batches_sum_to_the_whole(how, batch, cut):
    """Value and gradient, for a cut between two groups (anywhere, for most)."""
    per_token, mask, group = batch
    per_token.requires_grad_()
    whole = aggregate(per_token, mask, how, group=group, max_length=6)
    counts = {"batch_tokens": mask.sum().item(), "batch_sequences": len(mask)}
    first = group <= min(cut, int(group.max()) - 1)
    parts = sum(
        aggregate(per_token[p], mask[p], how, group=group[p], max_length=6, **counts)
        for p in (first, ~first)
    )
    assert_close(parts, whole, rtol=0, atol=1e-12)
    slopes = [grad(x, per_token)[0] for x in (parts, whole)]
    assert_close(slopes[0], slopes[1], rtol=0, atol=1e-12)


def test_only_group_token_mean_needs_whole_groups():
    per_token, mask = tensor([[1.0, 2.0], [9.0, 0.0]]), mask_of([2, 1])
    group, counts = tensor([0, 0]), {"batch_tokens": 3, "batch_sequences": 2}
    for how in AGGREGATIONS:
        whole = aggregate(per_token, mask, how, group=group, max_length=2)
        rows = [
            aggregate(
                per_token[i : i + 1],
                mask[i : i + 1],
                how,
                group=group[i : i + 1],
                max_length=2,
                **counts,
            )
            for i in (0, 1)
        ]
        # (1+2)/2 · ½ + 9 · ½ = 5.25 against (1+2+9)/3 = 4 for the group
        agrees = abs(sum(rows) - whole).item() < 1e-12
        assert agrees == (how != "group_token_mean")


def test_a_mean_of_means_is_not_the_mean():
    """1, 1, 1 and 5: the mean is 2; the mean of the micro-batches' means is 3."""
    per_token, mask = tensor([[1.0, 1.0, 1.0], [5.0, 0.0, 0.0]]), mask_of([3, 1])
    whole = aggregate(per_token, mask, "token_mean")
    means = [aggregate(per_token[[i]], mask[[i]], "token_mean") for i in (0, 1)]
    shares = [
        aggregate(per_token[[i]], mask[[i]], "token_mean", batch_tokens=4)
        for i in (0, 1)
    ]
    assert whole.item() == 2
    assert sum(means).item() / 2 == 3
    assert sum(shares).item() == 2


def test_the_counts_may_be_numbers_or_tensors():
    per_token, mask = tensor([[1.0, 3.0]]), mask_of([2])
    for tokens in (8, 8.0, tensor(8), tensor(8.0)):
        assert aggregate(per_token, mask, "token_mean", batch_tokens=tokens) == 4 / 8
    how = "seq_mean_token_mean"
    assert aggregate(per_token, mask, how, batch_sequences=4).item() == 2 / 4


# Invariance


@pytest.mark.parametrize("how", AGGREGATIONS)
@given(batch=batches(), extra=st.integers(1, 4), data=st.data())
def test_padding_and_order_of_rows_do_not_matter(how, batch, extra, data):
    per_token, mask, group = batch
    whole = aggregate(per_token, mask, how, group=group, max_length=6)
    nan, none = torch.full((len(mask), extra), math.nan), torch.zeros(len(mask), extra)
    wider, mask_wider = torch.cat([per_token, nan], 1), torch.cat([mask, none], 1)
    padded = aggregate(wider, mask_wider, how, group=group, max_length=6)
    assert_close(padded, whole, rtol=0, atol=1e-12)
    i = tensor(data.draw(st.permutations(range(len(mask)))))
    shuffled = aggregate(per_token[i], mask[i], how, group=group[i], max_length=6)
    assert_close(shuffled, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", AGGREGATIONS)
@given(batch=batches())
def test_an_empty_row_adds_exactly_nothing_when_the_count_is_fixed(how, batch):
    per_token, mask, group = batch
    per_token = torch.cat([per_token, torch.full((1, 6), math.nan)]).requires_grad_()
    mask, group = torch.cat([mask, torch.zeros(1, 6)]), torch.cat([group, tensor([99])])
    fixed = {"max_length": 6, "batch_sequences": len(mask) - 1}
    with_it = aggregate(per_token, mask, how, group=group, **fixed)
    without = aggregate(per_token[:-1], mask[:-1], how, group=group[:-1], **fixed)
    assert_close(with_it, without, rtol=0, atol=1e-13)
    slopes = [grad(x, per_token)[0] for x in (with_it, without)]
    assert torch.equal(slopes[0], slopes[1])
    assert slopes[0][-1].tolist() == [0.0] * 6


def test_an_empty_row_still_counts_as_a_response():
    """The paper's 1/G: rows of means 2 and 4 and an empty one give (2 + 4 + 0)/3."""
    per_token, mask = tensor([[2.0], [4.0], [7.0]]), tensor([[1.0], [1.0], [0.0]])
    assert aggregate(per_token, mask, "seq_mean_token_mean").item() == pytest.approx(
        2.0
    )
    assert aggregate(per_token, mask, "token_mean").item() == pytest.approx(3.0)
    constant = aggregate(per_token, mask, "constant", max_length=2)
    assert constant.item() == pytest.approx(6 / (3 * 2))


# Errors


def test_unknown_aggregation_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"'mean'; one of .*seq_mean_.*constant"):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "mean")


def test_group_token_mean_needs_group():
    with pytest.raises(
        ValueError, match=r"'group_token_mean' needs group=, \(B,\) ids"
    ):
        aggregate(torch.ones(1, 1), torch.ones(1, 1), "group_token_mean")


def test_group_must_name_every_row():
    with pytest.raises(ValueError, match=r"group .*\(B,\).*B = 2, got \(3,\)"):
        aggregate(
            torch.ones(2, 1),
            torch.ones(2, 1),
            "group_token_mean",
            group=tensor([0, 0, 1]),
        )


@pytest.mark.parametrize("max_length", [None, 0, -1, 1])
def test_constant_needs_a_length_no_response_exceeds(max_length):
    with pytest.raises(ValueError, match=rf"response \(2 tokens\), got {max_length}"):
        aggregate(torch.ones(1, 2), torch.ones(1, 2), "constant", max_length=max_length)


def test_constant_needs_a_positive_length_even_for_an_empty_batch():
    with pytest.raises(ValueError, match=r"response \(0 tokens\), got 0"):
        aggregate(torch.ones(1, 2), torch.zeros(1, 2), "constant", max_length=0)
