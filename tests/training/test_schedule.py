"""The learning rate over a run: warm-up, then constant, linear or cosine."""

import math

import pytest
import torch

from refimpl import checkpoint
from refimpl.trainer import TrainConfig
from tests.worlds import fixed_noise, same_weights, small_run

RATES = {
    # 4 rollouts × 2 updates, 2 of warm-up: x = 0, 1/6, 2/6, 3/6, 4/6, 5/6.
    "constant": [1 / 2, 1, 1, 1, 1, 1, 1, 1],
    "linear": [1 / 2, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6],
    "cosine": [
        *(1 / 2, 1, 1),
        (1 + math.sqrt(3) / 2) / 2,  # cos 30°
        (1 + 1 / 2) / 2,  # cos 60°
        1 / 2,  # cos 90°
        (1 - 1 / 2) / 2,
        (1 - math.sqrt(3) / 2) / 2,
    ],
}


@pytest.mark.parametrize("schedule", RATES)
def test_every_update_takes_its_rate(schedule, monkeypatch):
    seen, step = [], torch.optim.AdamW.step

    def spy(self, *arguments, **keywords):
        seen.append([group["lr"] for group in self.param_groups])
        return step(self, *arguments, **keywords)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    rates = {"learning_rate": 4e-4, "critic_learning_rate": 1e-3}
    small_run("ppo", rollouts=4, warmup_updates=2, schedule=schedule, **rates)
    policy, critic = zip(*seen)
    assert policy == pytest.approx([4e-4 * share for share in RATES[schedule]])
    assert critic == pytest.approx([1e-3 * share for share in RATES[schedule]])


def test_without_warm_up_it_begins_at_the_peak():
    config = TrainConfig(rollouts=2, minibatches=2, schedule="linear")
    rates = [config.rate(n) for n in range(6)]
    assert rates == [1, 0.75, 0.5, 0.25, 0, 0]  # and never below 0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_run_of_warm_up_alone_is_refused(schedule):
    settings = {"rollouts": 3, "minibatches": 4, "schedule": schedule}
    TrainConfig(**settings, warmup_updates=11)
    with pytest.raises(ValueError, match=r"warmup_updates is 12 .* only 12 "):
        TrainConfig(**settings, warmup_updates=12)
    TrainConfig(**settings | {"schedule": "constant"}, warmup_updates=12)


def test_a_schedule_is_resumed_over_the_rollouts_it_was_made_for(tmp_path, monkeypatch):
    settings = {"reward": fixed_noise, "schedule": "cosine", "rollouts": 4}
    whole = small_run(**settings)
    saves, save = [], checkpoint.save

    def once(folder, state):
        """The process ends after the first rollout is saved."""
        if saves:
            raise checkpoint.CheckpointError("no space left")
        saves.append(save(folder, state))

    again = {**settings, "checkpoint_every": 1, "checkpoint_dir": tmp_path}
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", once)
        with pytest.warns(UserWarning, match="stopped after 2 of 4"):
            small_run(**again)
    for rollouts in (3, 5):
        with pytest.raises(
            ValueError,
            match=f"cosine schedule .* after 4 rollouts; with {rollouts} .*rollouts=4",
        ):
            small_run(**again | {"rollouts": rollouts}, resume=True)
    history = small_run(**again, resume=True)
    assert history["learning_rate"] == whole["learning_rate"]
    assert same_weights(history.model, whole.model)
