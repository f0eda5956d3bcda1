"""maj@k: the answer that most of a lot give, lot by lot."""

import pytest
import torch

from experiments.grid import maj_at


@pytest.mark.parametrize(
    ("given", "k", "expected"),
    [
        (["7", "8", "8"], 3, 0.0),  # 8 has the most, and is wrong
        (["7", "8"], 2, 1.0),  # on a tie the one that came first
        (["8", "7"], 2, 0.0),
        (["8", "7", "7", "8"], 2, 0.5),  # two lots, none overlaps
        (["8", "7", "7", "7", "8"], 2, 0.5),  # the fifth makes no lot
    ],
)
def test_the_commonest_of_a_lot_decides_and_the_first_on_a_tie(given, k, expected):
    """7 is right."""
    scores = torch.tensor([[float(answer == "7") for answer in given]])
    assert maj_at(scores, [given], k) == pytest.approx(expected)
    two = torch.cat([scores, 0 * scores])
    assert maj_at(two, [given, given], k) == pytest.approx(expected / 2)
