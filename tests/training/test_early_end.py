"""A run that ends early hands back what it has, and says why it ended."""

import os
import signal
import warnings

import pytest
import torch

from refimpl import checkpoint
from refimpl.collect import DynamicSamplingError
from refimpl.history import History
from refimpl.tasks import Arithmetic
from refimpl.trainer import evaluate
from tests.worlds import (
    TOKENIZER,
    Drying,
    Interrupting,
    always_one,
    diverging,
    fixed_noise,
    same_weights,
    small_run,
    unwritable,
    warm_model,
)

CPU = torch.device("cpu")


def ended(algorithm="grpo", **arguments) -> History:
    """The history of a run that ends early, which a warning has to say too."""
    with pytest.warns(UserWarning, match=r"^stopped after \d of 4 rollouts: ") as said:
        history = small_run(algorithm, rollouts=4, **arguments)
    assert str(history.ended) == str(said[0].message)
    assert said[0].filename.endswith("worlds.py")  # where `train` was called
    return history


def whole(history, rollouts) -> bool:
    """As a run that was to be this long, accuracy apart."""
    other = small_run(rollouts=rollouts, minibatches=2)
    for row in (*history.rows, *other.rows):
        row["accuracy"] = None
    return history == other and same_weights(history.model, other.model)


# Ctrl-C


def test_ctrl_c_finishes_the_rollout_and_hands_it_back():
    reward = Interrupting(when=2)
    history = ended(reward=reward)
    assert isinstance(history.ended, KeyboardInterrupt)
    assert str(history.ended) == "stopped after 2 of 4 rollouts: interrupted"
    assert reward.calls == 2
    assert history["accuracy"][-1] == evaluate(
        history.model, TOKENIZER, problems=8, max_new_tokens=24
    )
    assert whole(history, 2)


def test_ctrl_c_in_the_first_rollout_finishes_that_one():
    history = ended(reward=Interrupting(when=1))
    assert len(history) == 1 and history.accuracy >= 0


def test_ctrl_c_in_the_last_rollout_ends_nothing_early():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = small_run(rollouts=4, reward=Interrupting(when=4))
    assert history.ended is None and len(history) == 4


def test_a_second_ctrl_c_stops_at_once_and_keeps_what_was_complete():
    history = ended(reward=Interrupting(when=3, times=2))
    assert isinstance(history.ended, KeyboardInterrupt)
    assert whole(history, 2)


def test_a_second_ctrl_c_before_the_first_rollout_is_complete_is_raised():
    with pytest.raises(KeyboardInterrupt):
        small_run(reward=Interrupting(when=1, times=2))


def test_a_second_ctrl_c_during_the_last_save_keeps_the_history(tmp_path, monkeypatch):
    def impatient(*_):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(torch, "save", impatient)
    history = ended(reward=Interrupting(when=2), checkpoint_dir=tmp_path)
    assert isinstance(history.ended, KeyboardInterrupt) and len(history) == 2
    assert not (tmp_path / checkpoint.NAME).exists()


# Nothing left to learn


def test_a_solved_task_ends_the_run_and_keeps_it():
    settings = {"reward": Drying(when=3), "max_sampling_rounds": 1}
    history = ended("dapo", overlong_share=0.0, **settings)
    assert isinstance(history.ended, DynamicSamplingError)
    assert "1 rounds of 4 prompts gave no group" in str(history.ended)
    assert "mean reward 1.00" in str(history.ended)
    assert len(history) == 2
    settings["reward"] = Drying(when=3)
    two = small_run("dapo", rollouts=2, overlong_share=0.0, **settings)
    assert same_weights(history.model, two.model)


def test_a_task_solved_from_the_start_is_an_error():
    with pytest.raises(DynamicSamplingError, match=r"2 rounds of 4 prompts"):
        small_run("dapo", reward=always_one, max_sampling_rounds=2)


# Divergence


@pytest.mark.parametrize(
    ("algorithm", "model"), [("grpo", "model"), ("ppo", "model"), ("ppo", "critic")]
)
def test_a_gradient_that_is_not_finite_ends_the_run(algorithm, model, monkeypatch):
    """Update 4 of 8 is the second of the second rollout."""
    diverging(monkeypatch, when=4, model=model)
    settings = {"reward": fixed_noise, "micro_batch_size": 16}
    history = ended(algorithm, **settings)
    assert isinstance(history.ended, FloatingPointError)
    name = "policy" if model == "model" else "critic"
    assert f"update 4: the norm of the {name}'s gradient is" in str(history.ended)
    assert len(history) == 1
    assert all(p.isfinite().all() for p in history.model.parameters())
    assert all(p.grad is None for p in history.model.parameters())


def test_a_gradient_that_is_not_finite_from_the_start_is_an_error(monkeypatch):
    diverging(monkeypatch, when=1)
    with pytest.raises(FloatingPointError, match=r"update 1: .* has diverged"):
        small_run(reward=fixed_noise)


# A full disk


def test_a_checkpoint_that_cannot_be_written_ends_the_run(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        unwritable(patch, when=2)
        history = ended(checkpoint_every=1, checkpoint_dir=tmp_path)
    assert isinstance(history.ended, OSError)
    assert f"no checkpoint could be written to {str(tmp_path)!r} (No space left" in str(
        history.ended
    )
    assert whole(history, 2)
    assert [len(checkpoint.load(tmp_path, CPU)["rows"])] == [1]
    assert not list(tmp_path.glob("*.tmp"))
    resumed = small_run(rollouts=4, checkpoint_dir=tmp_path, resume=True)
    assert resumed == small_run(rollouts=4)


def test_a_disk_that_torch_finds_full_is_one_too(tmp_path, monkeypatch):
    def full(*_):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . wrote 3 of 64")

    monkeypatch.setattr(torch, "save", full)
    history = ended(checkpoint_every=1, checkpoint_dir=tmp_path)
    assert isinstance(history.ended, OSError) and len(history) == 1


# What else may go wrong is raised


def test_a_broken_reward_is_raised_however_late():
    calls = []

    def broken(prompts, completions, **columns):
        calls.append(prompts)
        if len(calls) == 3:
            raise OSError("the judge is away")
        return Arithmetic.reward(prompts, completions, **columns)

    with pytest.raises(ValueError, match="the judge is away"):
        small_run(rollouts=4, reward=broken)


def test_a_whole_run_did_not_end_early():
    history = small_run(rollouts=2)
    assert history.ended is None
    assert history.model is not None and history.model is not warm_model()
