"""Chapter 15: what its stored runs were asked for, and what its numbers count."""

from collections import defaultdict
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import torch

import refimpl as rl
from course.late_sampler import figures as pictures
from course.late_sampler import late
from refimpl import ALGORITHMS
from refimpl.batch import Batch
from tests.worlds import TOKENIZER, random_model


def test_of_tokens_that_are_all_outside_the_share_is_one():
    """Padding is no token: the answers have several lengths."""
    model = random_model()
    given = {"group_size": 8, "seed": 0, "max_new_tokens": 24}
    rollout = rl.sample(model, TOKENIZER, ["1+2=", "1+2+3="], **given)
    assert rollout.mask.mean() < 1
    far = Batch(rollout, rollout.mask, rollout.logp - 1, torch.ones_like(rollout.mask))
    logp = rl.log_probs(model, rollout)[0]
    run = SimpleNamespace(read=lambda _: SimpleNamespace(logp=logp))
    assert late.outside(far, run) == (1.0, 0.0, 0.0)


def test_runs_of_one_method_and_rule_share_neither_start_nor_dice(monkeypatch):
    """And all rules of a method meet the same problems from the same weights."""
    jobs, found = [*late.planned()], defaultdict(list)
    assert len({*jobs}) == len(jobs) == len(late.STARTS) * (2 * len(late.RULES) + 1)
    for method, rule, start in jobs:
        spec = late.spec(method, rule, start)
        found[method, rule].append((spec["begins"], spec["seed"]))
        assert spec["seed"] == 100 * start and spec["sampler_delay"] == 4
    for pairs in found.values():
        assert len({*pairs}) == len(late.STARTS) == 10
        assert pairs == found["grpo", "none"]
    named = {late.store.key(late.spec(*job)) for job in jobs}
    assert len(named) == len(jobs)


def test_a_control_leaves_out_bad_answers_alone_and_as_many_as_it_should():
    rewards = torch.tensor([1.0, 0.0] * 4000)
    scored = rl.Scored(rewards, torch.arange(8000) // 8)
    plain = ALGORITHMS["grpo"].advantages(scored)
    made = late.dropping(ALGORITHMS["grpo"], 3).advantages(scored)
    assert torch.equal(made[::2], plain[::2])
    assert ((made[1::2] == 0) | (made[1::2] == plain[1::2])).all()
    assert (made[1::2] == 0).float().mean().item() == pytest.approx(0.77, abs=0.02)
    again = late.dropping(ALGORITHMS["grpo"], 3).advantages(scored)
    assert torch.equal(made, again)


def test_all_that_was_planned_is_stored_and_nothing_else():
    """By name: settings, weights and what the methods answer are those of today."""
    named = {late.store.key(late.spec(*job)) for job in late.planned()}
    assert late.store.done(late.STORE) == named


def test_the_clip_against_the_sampler_keeps_what_has_a_gradient():
    """π_old stands for μ there: GRPO's own loss, whose clip has one side per sign."""
    z = torch.linspace(-1, 1, 21).repeat(2, 1)
    mask, advantages = torch.ones_like(z), torch.tensor([1.0, -1.0])
    kept = pictures.kept(z, mask, advantages, 3.0, 0.01)[1]
    old = torch.full_like(z, -3.0)
    logp = (old + z).requires_grad_()
    ALGORITHMS["grpo"].policy_loss(logp, old, advantages, mask).loss.backward()
    assert torch.equal(kept, logp.grad != 0)


def test_the_line_of_a_rule_spans_its_interval(monkeypatch):
    monkeypatch.setattr(plt, "close", lambda *_: None)
    axes = pictures.gains("A finding").axes
    rules = [*list(late.RULES)[1:], late.TWO]
    for axis, method in zip(axes, late.METHODS):
        shown = [rule for rule in rules if rule in late.accuracy(method)]
        level = [
            line.get_xydata().tolist()
            for line in axis.lines
            if line.get_marker() == "None" and len({*line.get_ydata()}) == 1
        ]
        assert len(level) == len(shown) >= len(late.RULES) - 1
        for ((low, row), (high, _)), rule in zip(level, shown):
            made = late.against(method, rule)
            assert (low, high) == pytest.approx((made.low, made.high))
            assert rules[int(row)] == rule and made.low < made.effect < made.high
