"""The answers that every chapter follows by hand."""

import pytest
import torch

from course.by_hand import RATIOS, TEXTS, answers, compare, show


def test_the_answers_are_what_their_names_say():
    one = answers()
    assert [len(text) for text in TEXTS] == one.mask.sum(-1).tolist()
    ratio = (one.logp - one.old_logp).exp()
    for row, length, ratios in zip(ratio.tolist(), map(len, TEXTS), RATIOS):
        assert row[:length] == pytest.approx(ratios)
        assert row[length:] == [1] * (4 - length)


def test_padding_is_not_shown(capsys):
    show(gate=torch.tensor([[1.0, 2, 3, 99], [4, 5, 6, 7], [8, 9, 99, 99]]))
    printed = capsys.readouterr().out
    assert "99" not in printed and "7" in printed.splitlines()[3]


def test_a_value_per_answer_is_shown_on_each_of_its_tokens(capsys):
    show(advantage=torch.tensor([[5.0], [6.0], [7.0]]))
    assert capsys.readouterr().out.splitlines()[1].split() == ["advantage", *"555"]


@pytest.mark.parametrize("wrong", ["value", "gradient"])
def test_a_typed_loss_that_differs_is_refused(wrong, capsys):
    logp = answers().logp
    right = logp.sum()
    mine = right + 1e-9 if wrong == "value" else 2 * right - right.item()
    with pytest.raises(AssertionError, match="the two differ by"):
        compare(mine, right, logp)
    compare(logp.sum(), right, logp)
    assert "typed" in capsys.readouterr().out
