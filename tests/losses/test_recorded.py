"""Losses and gradients as recorded when they were last checked: nothing moved.

`make_recorded.py` writes the file. A method without recorded cases is not tested here.
"""

import pytest
from torch.testing import assert_close

from tests.losses.make_recorded import CHOSEN, answer, stored

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


def gradients_of(wanted) -> list[tuple]:
    """The recorded gradients, rounded, of the cases for which `wanted` holds."""
    rounded = DATA["gradients"].round(decimals=9).flatten(1).tolist()
    return [tuple(rounded[i]) for i, case in enumerate(CASES) if wanted(*case[:2])]


# 25 cases: four normalisers × three shifts × two truncations, and one with an
# advantage per token. Where γ is placed matters only to a clip. Where log π takes the
# place of the ratio, γ before the clip is no γ; where no ratio is clipped (none exceeds
# 5), before and after are the same. There two of the three shifts coincide: 25 − 8.
NO_CLIP = [("reinforce", {}), ("reinforce", {"correct": True}), ("cispo", {})]
SAME = {"ppo": {"grpo", "dr_grpo"}, "grpo": {"ppo", "dr_grpo"}, "gmpo": {"rspo"}}
SAME |= {"dr_grpo": {"ppo", "grpo"}, "rspo": {"gmpo"}}  # of one objective


@pytest.mark.parametrize("name", CHOSEN)
def test_a_case_computed_otherwise_would_be_seen(name):
    """With another weight or shift; or by another method, but for those that share its
    objective: some of its gradients are no other's."""
    for hyper in ({}, *CHOSEN[name]):
        here = gradients_of(lambda *case, hyper=hyper: case == (name, hyper))
        assert len(set(here)) == (17 if (name, hyper) in NO_CLIP else len(here)) > 16
    same = {name} | SAME.get(name, set())
    elsewhere = set(gradients_of(lambda one, _: one not in same))
    assert set(gradients_of(lambda one, _: one == name)) - elsewhere
