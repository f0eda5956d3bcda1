"""The permutation test of chapters 08 and 09, against values counted by hand."""

import math
from itertools import permutations

import pytest

from course.permutation import p_value

COUNTED = {
    # The 6 splits of 1 2 3 4 differ by 2 1 0 0 1 2.
    "two against two, apart": ([1, 2], [3, 4], 2 / 6),
    "two against two, mixed": ([1, 3], [2, 4], 4 / 6),
    "two against two, equal means": ([1, 4], [2, 3], 1),
    # 0 | 1 2 differs by 1.5, 1 | 0 2 by 0, 2 | 0 1 by 1.5.
    "one against two": ([0], [1, 2], 2 / 3),
    # 0 | 1 5 differs by 3, 1 | 0 5 by 1.5, 5 | 0 1 by 4.5.
    "one against two, without symmetry": ([5], [0, 1], 1 / 3),
    "one against two, the middle gap": ([0], [1, 5], 2 / 3),
    # Only the split itself and its mirror image, of 10 over 5 = 252.
    "five against five, apart": ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10], 2 / 252),
    "all alike": ([0.1, 0.1, 0.1], [0.1, 0.1], 1),
}


@pytest.mark.parametrize(("a", "b", "p"), COUNTED.values(), ids=COUNTED)
def test_counted_by_hand(a, b, p):
    assert p_value(a, b) == pytest.approx(p, abs=1e-15)


@pytest.mark.parametrize(("a", "b", "p"), COUNTED.values(), ids=COUNTED)
def test_neither_order_nor_side_nor_sign_nor_unit_matters(a, b, p):
    same = pytest.approx(p, abs=1e-15)
    assert p_value(b, a) == same
    assert p_value(a[::-1], b[::-1]) == same
    assert p_value([-x for x in a], [-x for x in b]) == same
    assert p_value([0.1 * x for x in a], [0.1 * x for x in b]) == same
    assert p_value([1e6 + 1e6 * x for x in a], [1e6 + 1e6 * x for x in b]) == same


def test_ties_count_however_their_sums_round():
    runs = (0.1, 0.2, 0.3, 0.4)
    found = {p_value(order[:2], order[2:]) for order in permutations(runs)}
    assert found == {2 / 6, 4 / 6, 1}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_run_without_a_number_is_refused(bad):
    with pytest.raises(ValueError, match="finite"):
        p_value([0.1, bad], [0.2, 0.3])
