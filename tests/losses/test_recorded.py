"""Losses and gradients as recorded when they were last checked: nothing moved.

`make_recorded.py` writes the file. A method without recorded cases is not tested here.
"""

import pytest
from torch.testing import assert_close

from tests.losses.make_recorded import answer, stored

DATA, CASES = stored()
RECORDED = list(dict.fromkeys(name for name, *_ in CASES))


@pytest.mark.parametrize("name", RECORDED)
def test_loss_gradient_and_clip_fractions_are_as_recorded(name):
    """To a few roundings: processors differ in the last bit of an exponential."""
    for i, (*case, metrics) in enumerate(CASES):
        if case[0] == name:
            loss, gradient, found = answer(DATA, *case)
            assert_close(loss, DATA["losses"][i], rtol=0, atol=1e-14)
            assert_close(gradient, DATA["gradients"][i], rtol=0, atol=1e-14)
            for key in metrics.keys() - {"ratio/max_deviation"}:  # without the shift
                assert found[key] == pytest.approx(metrics[key], rel=1e-6)
