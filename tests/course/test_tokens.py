"""The stored stale rollout, and what the token template computes from it."""

import numpy as np
import pytest
import torch

from course.kit import stale
from course.kit.plots import tokens
from course.one_surrogate import inspector
from refimpl import ALGORITHMS, Scored, normalisers
from refimpl.advantages import group_relative

UP, DOWN = 0, 17  # of the example: the fork, and the wrong answer's wrong digit


@pytest.fixture(scope="module")
def rollout():
    return stale.load()


def close(one, other):
    torch.testing.assert_close(one.double(), other.double(), rtol=1e-9, atol=1e-12)


def test_the_stored_rollout_is_whole(rollout):
    """17 × 64 × T log-ratios, 0 before the first update and outside the mask, of eight
    live groups of eight; rewards and advantages follow from the texts."""
    assert stale.FILE.stat().st_size < 300_000
    assert rollout.z.shape == (17, *rollout.mask.shape) and not rollout.z[0].any()
    assert not rollout.z[:, rollout.mask == 0].any()
    assert rollout.mask.sum(-1).tolist() == list(map(len, rollout.tokens))
    for prompt, row, reward in zip(rollout.prompts, rollout.tokens, rollout.rewards):
        assert row[-1] == stale.END or len(row) == rollout.mask.shape[1]
        total = sum(map(int, prompt.rstrip("=").split("+")))
        assert reward == "".join(row).endswith(f"#{total}{stale.END}")
    paid = Scored(rollout.rewards, rollout.group)
    torch.testing.assert_close(rollout.advantages, group_relative(paid))
    assert rollout.advantages.all()
    assert rollout.group.bincount().tolist() == [8] * 8
    assert len(set(zip(rollout.group.tolist(), rollout.prompts))) == 8


def test_a_clip_is_1_inside_and_0_beyond_on_one_side():
    part, r = tokens.numbers("dapo"), stale.example().z[16].double().exp()
    close(part["r"], r)
    close(part["push"], part["w"] * part["g"] * r * part["A"])
    close(part["c"], part["g"] * r)
    close(part["g"], torch.stack([r[0] <= 1.28, r[1] >= 0.8]))
    assert part["g"][0, UP] == 0 and part["g"][1, DOWN] == 0
    assert part["g"][1, UP] == pytest.approx(1)  # the same r: it may come back


@pytest.mark.parametrize("name", inspector.METHODS)
def test_the_inspectors_bars_are_the_gradient_of_the_loss_that_trains(name, rollout):
    """Upwards, as shares of the answer's largest; a cross where there is none."""
    play = inspector.step_explorer()
    method, mask = ALGORITHMS[name], rollout.mask.double()
    sizes = {"group": rollout.group, "max_length": 48}
    weight = normalisers.apply(method.normaliser, mask, **sizes)
    for prompt, answer, k in zip(inspector.PROMPTS, (1, 8, 3, 5), (1, 16, 1, 16)):
        logp = rollout.z[k].double().requires_grad_()
        A = rollout.advantages[:, None].double() * mask
        loss = method.policy_loss(logp, 0 * rollout.z[k], A, mask, weight).loss
        pushes = -torch.autograd.grad(loss, logp)[0].numpy()
        play.set(prompt=prompt, answer=answer, updates=k, method=name)
        row = rollout.prompts.index(prompt) + answer - 1
        bars, crosses, _ = play.moved[2]
        below, above, _ = bars.get_ydata().reshape(-1, 3).T
        count = len(rollout.tokens[row])
        shown = (above - below) * inspector.largest(row)
        np.testing.assert_allclose(shown, pushes[row, :count], atol=1e-9)
        assert len(crosses.get_xdata()) == 6 * (shown == 0).sum()
