"""One answer and a critic against a group: what was declared is what was run."""

import csv
from collections import Counter

from experiments import one_answer, store
from refimpl.config import TrainConfig


def test_the_stored_runs_are_the_declared_ones():
    """Every arm has as many answers, and each start its own dice."""
    jobs = [*one_answer.RUNS.jobs()]
    assert Counter(job["arm"] for job in jobs) == dict.fromkeys(one_answer.ARMS, 10)
    specs = [one_answer.RUNS.spec(job) for job in jobs]
    assert store.done(one_answer.RUNS.path) == {store.key(spec) for spec in specs}
    for spec in specs:
        assert spec["prompts_per_rollout"] * spec["group_size"] == 128
        assert spec["seed"] == 100 * spec["start"]
        assert spec["hyperparameters"] in ({}, one_answer.BOUNDS["hyperparameters"])
        same = {"minibatches", "epochs", "rollouts", "corrections", "normaliser"}
        job = {"arm": one_answer.GROUP, "rate": spec["rate"], "start": spec["start"]}
        plain = one_answer.RUNS.config(job)
        assert all(spec[name] == getattr(plain, name) for name in same)
    with open(store.paths(one_answer.RUNS.path)[0], newline="") as file:
        assert not [line for line in csv.DictReader(file) if line["ended"]]
    assert TrainConfig().critic_learning_rate == 5 * min(one_answer.RATES)


def test_the_guide_says_what_the_runs_say():
    """One answer is level with a group, with a critic or without; waiting is dear."""
    words = {arm: one_answer.against_group(arm)[1] for arm in [*one_answer.ARMS][1:]}
    waits = "128 × 1, critic, 10 rollouts ahead"
    assert words.pop(waits) == "contradicted"
    assert {*words.values()} == {"none that matters"}
    assert all(arm in one_answer.table() for arm in one_answer.ARMS)
