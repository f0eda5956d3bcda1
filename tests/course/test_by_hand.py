"""The answers that every chapter follows by hand."""

import pytest

from course.kit.by_hand import RATIOS, TEXTS, answers, compare


def test_the_answers_are_what_their_names_say():
    one = answers()
    assert [len(text) for text in TEXTS] == one.mask.sum(-1).tolist()
    ratio = (one.logp - one.old_logp).exp()
    for row, length, ratios in zip(ratio.tolist(), map(len, TEXTS), RATIOS):
        assert row[:length] == pytest.approx(ratios)
        assert row[length:] == [1] * (4 - length)


@pytest.mark.parametrize("wrong", ["value", "gradient"])
def test_a_typed_loss_that_differs_is_refused(wrong):
    logp = answers().logp
    right = logp.sum()
    mine = right + 1e-4 if wrong == "value" else 2 * right - right.item()
    with pytest.raises(AssertionError, match="the two differ by"):
        compare(mine, right, logp)
    compare(logp.sum(), right, logp)
