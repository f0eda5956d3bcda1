"""Which tokens the arms of `experiments.entropy` train on, and what came of them."""

import pytest
import torch

from experiments import entropy, store
from refimpl.sft import WarmStart, weights_digest
from tests.worlds import rolled_out


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


def test_every_declared_run_is_stored_and_begins_from_a_shipped_start():
    have = store.done(entropy.RUNS.path)
    assert {entropy.RUNS.key(job) for job in entropy.RUNS.jobs()} == have
    runs, _ = store.read(entropy.RUNS.path)
    digests = {weights_digest(WarmStart(seed=start)) for start in entropy.STARTS}
    assert set(runs["weights"]) == digests


@pytest.mark.parametrize("rate", entropy.RATES)
def test_the_verdicts_are_those_that_the_chapter_tells(rate):
    """A fifth is slower than all tokens, and a random fifth as good as the top one."""
    found = entropy.outcomes()
    assert found[rate, "top", "all"].high < 0 < found[rate, "top", "rest"].low
    assert found[rate, "top", "random"].high < 0.05
    assert (found[rate, "top", "all"].high < -0.05) == (rate == 2e-4)
