"""Chapter 17: what a teacher's advantage does, and which teacher reads what."""

import torch
from torch.testing import assert_close

import refimpl as rl
from course import distil
from course.plots import distil as pictures
from refimpl.tasks import Arithmetic


def pair():
    """Student and teacher over five tokens, log-probs."""
    draws = torch.Generator().manual_seed(0)
    two = torch.randn(2, 5, generator=draws, dtype=torch.float64)
    return two.log_softmax(-1)


def test_push_and_spread_are_mean_and_variance_over_the_drawn_token():
    own, other = pair()
    advantage, pi = other - own, own.exp()
    each = advantage[:, None] * (torch.eye(5).double() - pi)  # by drawn token
    mean = (pi[:, None] * each).sum(0)
    assert_close(distil.push(own, advantage), mean)
    variance = (pi * ((each - mean) ** 2).sum(-1)).sum()
    assert_close(distil.spread(own, advantage), variance)
    for tail in (False, True):
        assert_close(distil.top(own, other, 5, tail), mean)
    rest = distil.top(own, other, 4, tail=True)  # of one token: nothing is cut
    assert_close(rest, mean)


def test_a_teacher_that_is_the_student_has_nothing_to_say():
    start, tokenizer, _ = rl.warm_start()
    config = rl.TrainConfig(rollouts=1, allow_on_policy=True, minibatches=1)
    given = {"model": start, "tokenizer": tokenizer, "task": Arithmetic()}
    history = distil.distil(distil.one(start), config, **given)
    assert abs(history["kl"][0]) < 1e-5
    both = distil.routed([start, start], distil.is_sorting)
    assert abs(distil.distil(both, config, **given)["kl"][0]) < 1e-5


def test_the_stored_runs_are_there():
    stored = distil.read()
    for arm, runs in (("distilled", 5), ("RL", 5)):
        assert sorted(r["seed"] for r in stored[f"toy: {arm}"]) == list(range(runs))
    assert {len(stored[f"worlds: {a}"]) for a in ("routed", "averaged", "RL")} == {3}


def test_the_explorer_shows_the_push():
    play = pictures.teacher_explorer()
    play.set(student=0.9, teacher=0.9, other=0.6)
    heights = [bar.get_height() for bar in play.figure.axes[2].patches]
    assert max(map(abs, heights)) < 1e-9
