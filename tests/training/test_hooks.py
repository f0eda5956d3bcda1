"""What happens after a rollout, and how a run ends: as planned, early, or refused."""

import os
import re
import signal
import threading
from unittest.mock import Mock, call

import pytest
import torch

from refimpl import History, StalenessError, checkpoint, evaluate, hooks
from refimpl.checkpoint import Checkpoint
from refimpl.files import CheckpointError
from refimpl.hooks import Samples
from refimpl.logprobs import log_probs
from refimpl.rollout import Batch
from tests.worlds import (
    TOKENIZER,
    Interrupting,
    always_one,
    diverging,
    fixed_noise,
    largest_difference,
    same_weights,
    small_run,
    unwritable,
    warm_model,
)

STILL = {"learning_rate": 1e-12}
"""Nothing moves."""


def mine(*_):
    """A handler of Ctrl-C that was there before."""


@pytest.fixture(autouse=True)
def the_handler_of_ctrl_c_is_given_back():
    """However a run ends."""
    before = signal.signal(signal.SIGINT, mine)
    yield
    assert signal.getsignal(signal.SIGINT) is mine
    signal.signal(signal.SIGINT, before)


def saved(folder) -> list[dict]:
    """The rows of a checkpoint."""
    return checkpoint.load(folder)["rows"]


def test_hooks_see_the_row_and_the_batch_before_bar_and_checkpoint_do(
    tmp_path, monkeypatch
):
    """Evaluate; the user's, in their order; the bar; save; stop."""
    seen = []

    def first(run, step):
        assert torch.is_grad_enabled()
        row = run.history.rows[-1]
        seen.append((step, row["step"], len(run.history), row["accuracy"] is None))
        assert isinstance(run.batch, Batch) and len(run.batch) == 16
        assert torch.isfinite(run.batch.old_logp).all() and row["grad_norm"] > 0
        kept = tmp_path / checkpoint.NAME
        assert kept.exists() == (step > 0)  # that of the rollout before
        row["reward"], row["mine"] = 100.0 + step, 1.0

    def second(run, step):
        run.history.rows[-1]["mine"] += 1.0
        if step == 1:
            run.stop_signal = signal.SIGINT

    monkeypatch.setattr(hooks, "tqdm", bar := Mock())
    own = [first, second, Checkpoint(tmp_path, every=1)]
    history = interrupted(hooks=own, progress=True, rollouts=3, eval_every=2)
    assert seen == [(0, 0.0, 1, True), (1, 1.0, 2, False)]
    assert call(total=3, initial=0, desc="grpo", leave=False) in bar.mock_calls
    shown = [said.kwargs["reward"] for said in bar().set_postfix.call_args_list]
    assert shown == ["100.00", "101.00"] and bar().close.called
    assert [row["mine"] for row in saved(tmp_path)] == history["mine"] == [2.0, 2.0]


@pytest.mark.parametrize("why", [STILL, {"reward": always_one}])
def test_a_policy_that_does_not_move_is_refused(why, tmp_path):
    """It is saved first."""
    for rollouts, done in ((2, 2), (7, 5)):
        kept = Checkpoint(tmp_path, overwrite=True, every=1)
        said = rf"after {done} rollouts with K = 2 .* Check the rewards"
        with pytest.raises(StalenessError, match=said) as caught:
            small_run(rollouts=rollouts, hooks=[kept], **why)
        history = caught.value.history
        assert len(history) == len(saved(tmp_path)) == done
    assert largest_difference(history.model, warm_model()) < 1e-9
    slow = small_run(rollouts=2, learning_rate=1e-5, reward=fixed_noise)
    assert 1e-4 < max(slow["ratio/max_deviation"]) < 1e-2


def ended(algorithm="grpo", **arguments) -> History:
    """The history of a run that ends early, which a warning has to say too."""
    with pytest.warns(UserWarning, match=r"^stopped after \d of 4 rollouts: ") as said:
        history = small_run(algorithm, rollouts=4, **arguments)
    assert str(history.ended) == str(said[0].message)
    assert said[0].filename.endswith("worlds.py")  # where `train` was called
    return history


def interrupted(**arguments) -> History:
    """The history that an interrupt carries, so that no loop goes on after Ctrl-C."""
    arguments.setdefault("rollouts", 4)
    with pytest.raises(KeyboardInterrupt) as caught:
        small_run(**arguments)
    said = f"stopped after 2 of {arguments['rollouts']} rollouts: interrupted"
    assert str(caught.value) == said
    assert caught.value.history.ended is caught.value
    return caught.value.history


def whole(history, rollouts, **settings) -> bool:
    """As a run that was to be this long, accuracy apart."""
    other = small_run(rollouts=rollouts, **settings)
    for row in (*history.rows, *other.rows):
        row["accuracy"] = None
    return history == other and same_weights(history.model, other.model)


@pytest.mark.parametrize("rollouts", [4, 2])  # the last one is not too late
def test_ctrl_c_finishes_the_rollout_and_is_raised_with_the_history(rollouts):
    """Evaluated as it was sampled."""
    reward, cold = Interrupting(when=2), {"temperature": 0.5}
    history = interrupted(reward=reward, eval_problems=64, rollouts=rollouts, **cold)
    assert reward.calls == 2
    given = {"problems": 64, "max_new_tokens": 24, **cold}
    assert history["accuracy"][-1] == evaluate(history.model, TOKENIZER, **given)
    assert whole(history, 2, **cold)


def test_a_second_ctrl_c_during_the_last_save_keeps_the_history(tmp_path, monkeypatch):
    def impatient(*_):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(torch, "save", impatient)
    history = interrupted(reward=Interrupting(when=2), checkpoint_dir=tmp_path)
    assert len(history) == 2
    assert not (tmp_path / checkpoint.NAME).exists()


def test_a_checkpoint_that_cannot_be_written_ends_the_run(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        unwritable(patch, when=2)
        history = ended(hooks=[Checkpoint(tmp_path, every=1)])
    assert isinstance(history.ended, CheckpointError) and whole(history, 2)
    assert len(saved(tmp_path)) == 1
    assert {path.name for path in tmp_path.iterdir()} == {checkpoint.NAME, ".lock"}


def judged(away: list):
    """A reward whose judge cannot be reached while `away` says so, 0 times at last."""

    def reward(completions, **_):
        if away and away.pop():
            raise OSError("the judge is away")
        return fixed_noise(completions)

    return reward


def test_a_reward_that_fails_once_ends_the_run_and_loses_no_rollout(tmp_path):
    away, kept = [True, False, False], Checkpoint(tmp_path, every=99)
    with pytest.MonkeyPatch.context() as patch:
        unwritable(patch, when=1)
        history = ended(reward=judged([*away]), hooks=[kept])
    said = r"the judge is away.*; no checkpoint .* \(No space left on device\)"
    assert re.search(said, str(history.ended))
    history = ended(reward=judged(away), hooks=[kept])
    assert isinstance(history.ended.__cause__.__cause__, OSError)
    assert len(history) == len(saved(tmp_path)) == 2
    settings = {"reward": judged([]), "rollouts": 4}
    resumed = small_run(checkpoint_dir=tmp_path, resume=True, **settings)
    assert resumed == small_run(**settings)


def test_what_fails_in_the_updates_saves_nothing_between_two_rollouts(tmp_path):
    """What would go on from there would not be the same run."""
    with pytest.MonkeyPatch.context() as patch:
        diverging(patch, when=6)  # the second of two updates of the third rollout
        kept = {"reward": fixed_noise, "checkpoint_dir": tmp_path, "hooks": [Samples()]}
        history = ended(micro_batch_size=16, **kept)
    assert len(history) == 2 and not (tmp_path / checkpoint.NAME).exists()
    assert [sample["step"] for sample in history.samples[::4]] == [0, 1, 2]
    assert all(p.grad is None for p in history.model.parameters())
    passes = [log_probs] * 5  # one an update: the sixth fails
    with pytest.raises(IndexError):
        small_run(log_probs=lambda *x: passes.pop()(*x), checkpoint_dir=tmp_path)
    assert not (tmp_path / checkpoint.NAME).exists()


def test_a_fault_of_the_program_is_raised_and_carries_the_history(tmp_path):
    def broken(run, step):
        return 1 / (1 - step)

    with pytest.raises(ZeroDivisionError) as caught:
        small_run(hooks=[broken, Checkpoint(tmp_path, every=99)])
    history = caught.value.history
    assert len(history) == len(saved(tmp_path)) == 2
    assert history.ended is caught.value and history.model is not None


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_request_to_end_and_a_closed_terminal_finish_the_rollout(name, tmp_path):
    """However often they are said: a shell and its terminal both say it."""
    number, calls = getattr(signal, name), []

    def reward(completions, **_):
        calls.append(len(calls))
        if len(calls) == 2:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
        return fixed_noise(completions)

    history = ended(reward=reward, checkpoint_dir=tmp_path)
    assert str(history.ended).endswith(f"of 4 rollouts: {name}")
    assert history.ended.number == number
    assert len(history) == len(saved(tmp_path)) == 2
    calls.clear()
    assert small_run(reward=reward, rollouts=2).ended is None  # it was the last
    ignored = signal.signal(number, signal.SIG_IGN)  # as nohup has it
    calls.clear()
    assert small_run(reward=reward, rollouts=3).ended is None
    signal.signal(number, ignored)


def test_off_the_main_thread_a_run_is_the_same_and_leaves_ctrl_c_alone():
    found, seen = [], []

    def noting(completions, **_):
        seen.append(signal.getsignal(signal.SIGINT) is mine)
        return fixed_noise(completions)

    thread = threading.Thread(target=lambda: found.append(small_run(reward=noting)))
    thread.start()
    thread.join()
    assert found == [small_run(reward=noting)]
    assert seen == [True] * 3 + [False] * 3  # on the main thread it is taken


def test_where_every_response_is_cut_off_and_left_out_that_is_said():
    """And not that the policy stands still."""
    cut = {"max_new_tokens": 1, "overlong_filtering": True}
    with pytest.raises(StalenessError, match="cut off at max_new_tokens = 1, and over"):
        small_run(rollouts=1, reward=fixed_noise, **cut)
