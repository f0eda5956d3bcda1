"""The experiments with the calculator: what was planned, stored, and came of it."""

from dataclasses import replace

import torch

import refimpl as rl
from experiments import store, turns


def test_all_that_was_planned_is_stored_and_nothing_else():
    """By name: settings, the start's weights and what GRPO answers are today's."""
    planned = [turns.RUNS.key(job) for job in turns.RUNS.jobs()]
    assert len({*planned}) == len(turns.ARMS) * len(turns.SEEDS)
    assert {*planned} == store.done(turns.RUNS.path)


def test_the_table_shows_what_was_declared():
    """But for one outcome: without a loss on them, answers that are cut off do not
    become more. They stay, while they become fewer where they are paid 0."""
    found = turns.outcomes()
    assert (found["count"] == len(turns.SEEDS)).all()
    least, most, mean = found["min"], found["max"], found["mean"]
    gain, norm, cosine, same = turns.DECLARED.values()
    assert least["reward, right − observations"] >= gain
    assert least["first gradient's norm / the right one's"] >= norm
    assert most["its cosine with the right one"] < cosine
    assert abs(mean["reward, gigpo − grpo"]) < same
    assert most["share cut off, last − first, paid 0"] < 0
    assert least["share cut off, last − first, no loss"] < 0
    held = "share cut off, last − first, {}".format
    assert mean[held("no loss")] > mean[held("paid 0")] + 0.1
    of = "right turns of failed answers with credit, {}".format
    assert mean[of("differences, 4")] > 0.5
    assert most[of("grpo")] == most[of("gigpo, 1")] == most[of("gigpo, 2")] == 0


def test_observations_are_trained_on_in_one_arm_alone_and_with_their_log_probs():
    run = rl.prepare("grpo", replace(turns.CONFIG, rollouts=1), task=turns.WORLD)
    run.reads_old = True
    batch, _ = rl.collect(run, 0)
    wrong = turns.with_observations(run, batch)
    steps = torch.arange(batch.mask.shape[1])
    span = (steps < batch.rollout.span[:, None]).float()
    assert torch.equal(wrong.mask, span) and torch.equal(wrong.rollout.mask, span)
    assert (span - batch.mask).sum() > 100
    own = batch.mask.bool()
    torch.testing.assert_close(wrong.old_logp[own], batch.old_logp[own])
    assert wrong.old_logp[(span - batch.mask).bool()].mean() < -4
