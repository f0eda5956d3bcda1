"""The answers that every chapter follows by hand."""

import pytest
import torch

from course.kit import tables
from course.kit.by_hand import RATIOS, TEXTS, answers, compare, show


def test_the_answers_are_what_their_names_say():
    one = answers()
    assert [len(text) for text in TEXTS] == one.mask.sum(-1).tolist()
    ratio = (one.logp - one.old_logp).exp()
    for row, length, ratios in zip(ratio.tolist(), map(len, TEXTS), RATIOS):
        assert row[:length] == pytest.approx(ratios)
        assert row[length:] == [1] * (4 - length)


@pytest.fixture
def shown(monkeypatch):
    """The tables that a cell shows: their rows as lists of cells."""
    rows = []

    def keep(page):
        lines = [line.strip("|").split("|") for line in page.data.splitlines()]
        rows.extend([cell.strip() for cell in line] for line in lines)

    monkeypatch.setattr(tables, "display", keep)
    return rows


def test_padding_is_not_shown(shown):
    show(gate=torch.tensor([[1.0, 2, 3, 99], [4, 5, 6, 7], [8, 9, 99, 99]]))
    gates = [row[1:] for row in shown if row[0] == "gate"]
    assert gates == [["1", "2", "3", ""], ["4", "5", "6", "7"], ["8", "9", "", ""]]


@pytest.mark.parametrize("wrong", ["value", "gradient"])
def test_a_typed_loss_that_differs_is_refused(wrong, shown):
    logp = answers().logp
    right = logp.sum()
    mine = right + 1e-4 if wrong == "value" else 2 * right - right.item()
    with pytest.raises(AssertionError, match="the two differ by"):
        compare(mine, right, logp)
    compare(logp.sum(), right, logp)
    assert [row[0] for row in shown].count("typed") == 2 * len(TEXTS)
