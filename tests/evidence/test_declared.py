"""Chapters' experiments: what was declared was run, and came out as is told."""

from dataclasses import replace

import pytest
import torch

import refimpl as rl
from course.distillation import distil
from course.late_sampler import late
from experiments import entropy, one_answer, sequence_gate, store, turns
from tests.worlds import rolled_out

pytestmark = pytest.mark.ci
ROOMS = [distil, entropy, late, one_answer, sequence_gate, turns]


@pytest.mark.parametrize("module", ROOMS)
def test_all_that_was_declared_is_stored_and_nothing_else(module):
    """By name, of sixty: settings, the start's weights and what the method answers are
    today's. No run ended early, and each start has dice of its own."""
    jobs, (runs, _) = [*module.RUNS.jobs()], store.read(module.RUNS.path)
    toy = [job for job in jobs if job.get("group") != "smollm2"]  # may not be fetched
    begun = {module.RUNS.key(job): module.RUNS.weights(job) for job in toy[-60:]}
    assert runs.set_index("run")["weights"].loc[[*begun]].to_dict() == begun
    assert len(jobs) == len(runs) and runs["ended"].isna().all()
    assert runs[["commit", "processor", "torch", "date"]].notna().all(axis=None)
    if "start" in runs:
        assert (runs["seed"] == 100 * runs["start"]).all()


def test_top_and_rest_are_a_partition_and_random_is_as_many_tokens():
    _, batch, _ = rolled_out()
    live = batch.mask.bool()
    top, rest, random = (
        entropy.ARMS[arm][0].kept(batch) & live for arm in ("top", "rest", "random")
    )
    assert torch.equal(top ^ rest, live) and not (top & rest).any()
    assert random.sum() == int(entropy.SHARE * live.sum())
    uncertain = batch.rollout.entropy[top].mean()
    assert uncertain > 2 * batch.rollout.entropy[random].mean()


@pytest.mark.parametrize("rate", entropy.RATES)
def test_a_fifth_is_slower_than_all_tokens_and_a_random_fifth_as_good_as_the_top(rate):
    found = entropy.outcomes()
    assert found[rate, "top", "all"].high < 0 < found[rate, "top", "rest"].low
    assert found[rate, "top", "random"].high < 0.05
    assert (found[rate, "top", "all"].high < -0.05) == (rate == 2e-4)


def test_whether_the_gate_on_whole_answers_helps_is_undecided_at_both_lags():
    """As chapter 19 tells it, though the gate drops much at the larger lag."""
    made = {lag: sequence_gate.gain(lag) for lag in sequence_gate.LAGS}
    assert {word for _, word in made.values()} == {"undecided"}
    told = {4: [0.05, -0.07, 0.18], 16: [-0.04, -0.30, 0.22]}
    for lag, (gain, _) in made.items():
        assert [gain.effect, gain.low, gain.high] == pytest.approx(told[lag], abs=5e-3)
    found = sequence_gate.outcomes().groupby(["arm", "lag"]).mean(numeric_only=True)
    gated, free = (found.loc[arm] for arm in sequence_gate.DELTAS)
    assert gated["dropped"].tolist() == pytest.approx([0.25, 0.76], abs=5e-3)
    assert free["mean"].tolist() == pytest.approx([0.81, 0.71], abs=5e-3)
    assert gated["mean"].tolist() == pytest.approx([0.86, 0.67], abs=5e-3)
    assert (free["dropped"] == 0).all() and "undecided" in sequence_gate.table()


def test_one_answer_with_a_critic_is_as_good_as_a_group_unless_it_learns_alone():
    """As chapter 19 tells it."""
    made = [one_answer.against_group(arm) for arm in [*one_answer.ARMS][1:]]
    same = ["none that matters"] * 3
    assert [word for _, word in made] == [same[0], "contradicted", *same]
    assert made[0][0][:3] == pytest.approx((0.017, 0.004, 0.031), abs=5e-4)


def test_observations_are_trained_on_in_one_arm_alone_and_with_their_log_probs():
    given = {"answer": ["3", "3"], "completion_ids": [[5, turns.END], [5, 6]]}
    assert turns.ended(None, ["#3", "#3"], **given) == [1.0, 0.0]  # cut off: nothing
    run = rl.prepare("grpo", replace(turns.CONFIG, rollouts=1), task=turns.WORLD)
    run.old_logp_of = "policy"
    assert (turns.outcomes()["count"] == 10).all()
    batch, _ = rl.collect(run, 0)
    wrong = turns.with_observations(run, batch)
    steps = torch.arange(batch.mask.shape[1])
    span = (steps < batch.rollout.span[:, None]).float()
    assert torch.equal(wrong.mask, span) and torch.equal(wrong.rollout.mask, span)
    assert (span - batch.mask).sum() > 100
    own = batch.mask.bool()
    torch.testing.assert_close(wrong.old_logp[own], batch.old_logp[own])
    assert wrong.old_logp[(span - batch.mask).bool()].mean() < -4
