"""A run that was stopped and continued is the run that was never stopped."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from refimpl import checkpoint
from refimpl import collect as collecting
from refimpl.checkpoint import NAME, check_matches, claim
from refimpl.files import writable_file, writable_folder
from refimpl.tasks import Arithmetic
from refimpl.trainer import MAY_CHANGE_ON_RESUME, StalenessError, TrainConfig, train
from tests.worlds import (
    SMALL,
    TOKENIZER,
    Interrupting,
    fixed_noise,
    gpt2,
    random_model,
    same_weights,
    small_run,
    warm_model,
)

METHODS = {
    "grpo": ("grpo", {}),
    "grpo warm-up": ("grpo", {"warmup_updates": 7, "epochs": 2, "entropy_bonus": 0.01}),
    "ppo kl": ("ppo", {"beta": 0.1, "kl_in": "reward"}),
}
CPU = torch.device("cpu")


def identical(one, other) -> bool:
    """Every tensor and number of two checkpoints, bit for bit; time left out."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            identical(one[k], other[k]) for k in one if k != "step_time"
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(identical, one, other))
    return one == other


# Resuming


@pytest.mark.parametrize("method", METHODS)
def test_four_rollouts_are_two_and_two_more(method, tmp_path):
    """The weights, the optimiser, the critic, the reference, the history."""
    algorithm, settings = METHODS[method]
    settings = {**settings, "eval_every": 2}
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    whole = small_run(algorithm, rollouts=4, checkpoint_dir=straight, **settings)
    settings["checkpoint_dir"] = parts
    first = small_run(algorithm, rollouts=2, **settings)
    assert len(first) == 2
    resumed = small_run(algorithm, rollouts=4, resume=True, **settings)
    assert resumed == whole
    assert same_weights(resumed.model, whole.model)
    assert not same_weights(resumed.model, first.model)
    one, other = checkpoint.load(straight, CPU), checkpoint.load(parts, CPU)
    assert identical(one, other)
    assert one["optimizer"]["state"]
    assert (one["critic"] is None) == (algorithm != "ppo")


@pytest.mark.parametrize("eval_every", [2, 3])
def test_evaluations_fall_on_the_same_rollouts(eval_every, tmp_path):
    """The shorter run measured its last rollout; the longer one need not."""
    whole = small_run(rollouts=4, eval_every=eval_every)
    settings = {"eval_every": eval_every, "checkpoint_dir": tmp_path}
    small_run(rollouts=2, **settings)
    assert small_run(rollouts=4, resume=True, **settings) == whole


def test_everything_that_learned_or_was_learned_from_is_in_the_file(tmp_path):
    """The model given on resuming lends its shape alone, to the reference as well."""
    settings = {"beta": 0.1, "eval_every": 2}
    whole = small_run("ppo", rollouts=4, **settings)
    settings["checkpoint_dir"] = tmp_path
    small_run("ppo", rollouts=2, **settings)
    resumed = small_run(
        "ppo", model=random_model(), rollouts=4, resume=True, **settings
    )
    assert resumed == whole
    assert same_weights(resumed.model, whole.model)


def test_resuming_a_finished_run_trains_no_more(tmp_path, monkeypatch):
    whole = small_run(rollouts=2, checkpoint_dir=tmp_path)
    monkeypatch.setattr(collecting, "sample", None)
    again = small_run(rollouts=2, checkpoint_dir=tmp_path, resume=True)
    assert again == whole
    assert same_weights(again.model, whole.model)


def test_numbers_of_numpy_can_be_resumed(tmp_path):
    settings = {"seed": np.int64(1), "hyperparameters": {"epsilon": np.float64(0.1)}}
    settings["checkpoint_dir"] = tmp_path
    small_run(rollouts=1, **settings)
    resumed = small_run(rollouts=2, resume=True, **settings)
    assert resumed == small_run(rollouts=2, seed=1, hyperparameters={"epsilon": 0.1})


def test_a_checkpoint_changes_nothing_in_the_run(tmp_path):
    settings = {"rollouts": 2, "checkpoint_every": 1}
    saved = small_run(checkpoint_dir=tmp_path, **settings)
    unsaved = small_run(**settings)
    assert saved == unsaved
    assert same_weights(saved.model, unsaved.model)


def test_the_number_of_rollouts_between_checkpoints(tmp_path, monkeypatch):
    saved, save = [], checkpoint.save

    def spy(folder, state):
        saved.append(len(state["rows"]))
        save(folder, state)

    monkeypatch.setattr(checkpoint, "save", spy)
    small_run(rollouts=5, checkpoint_every=2, checkpoint_dir=tmp_path)
    assert saved == [2, 4, 5]
    assert {path.name for path in tmp_path.iterdir()} == {NAME, ".lock"}


def test_the_folder_is_made(tmp_path):
    folder = tmp_path / "runs" / "first"
    small_run(rollouts=1, checkpoint_dir=str(folder))
    assert len(checkpoint.load(folder, CPU)["rows"]) == 1


# Refused


def test_there_must_be_something_to_resume(tmp_path):
    with pytest.raises(ValueError, match=r"nothing to resume: .*does not exist"):
        small_run(checkpoint_dir=tmp_path, resume=True)


def damage_by_cutting(path):
    path.write_bytes(path.read_bytes()[:-2000])


def damage_in_the_middle(path):
    """Bytes of a weight, where the file still opens as an archive."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 100] = bytes(b ^ 255 for b in content[middle:][:100])
    path.write_bytes(content)


DAMAGE = {
    "cut off": damage_by_cutting,
    "bytes changed": damage_in_the_middle,
    "half": lambda path: path.write_bytes(path.read_bytes()[:100_000]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("Dear reader, this is no checkpoint.\n"),
    "zeros": lambda path: path.write_bytes(bytes(10_000)),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_one_clear_error(damage, tmp_path):
    small_run(rollouts=1, checkpoint_dir=tmp_path)
    damage(tmp_path / NAME)
    with pytest.raises(ValueError, match=r"not a readable checkpoint .*Delete it"):
        small_run(checkpoint_dir=tmp_path, resume=True)


@pytest.mark.parametrize(
    "content",
    [
        {"weights": torch.zeros(2)},
        torch.zeros(2),
        {"version": 2},
        {"version": checkpoint.VERSION},
        dict.fromkeys(checkpoint.KEYS, 0) | {"version": checkpoint.VERSION - 1},
    ],
)
def test_a_file_of_something_else_is_one_clear_error(content, tmp_path):
    torch.save(content, tmp_path / NAME)
    with pytest.raises(ValueError, match="not written by this version"):
        small_run(checkpoint_dir=tmp_path, resume=True)


def test_a_file_with_code_in_it_is_not_run(tmp_path):
    """Pickle can call anything; a checkpoint is read as weights alone."""

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    torch.save({"version": checkpoint.VERSION, "model": Bomb()}, tmp_path / NAME)
    with pytest.raises(ValueError, match="not a readable checkpoint"):
        checkpoint.load(tmp_path, CPU)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_folder_that_cannot_be_written_is_refused_at_once(
    folder, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(collecting, "sample", None)
    with pytest.raises(
        ValueError, match=r"cannot write checkpoints to .*choose a folder"
    ):
        small_run(checkpoint_dir=tmp_path / folder)
    assert (tmp_path / "file").read_text() == "in the way"


def test_asking_whether_a_folder_is_writable_leaves_nothing_in_it(tmp_path):
    writable_folder(tmp_path / "new", "checkpoints")
    writable_file(tmp_path / "new" / "er" / "file", "the history")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["er"]
    assert list((tmp_path / "new" / "er").iterdir()) == []


# A folder that is taken


def test_a_checkpoint_is_not_overwritten_by_accident(tmp_path, monkeypatch):
    small_run(rollouts=1, checkpoint_dir=tmp_path)
    before = (tmp_path / NAME).read_bytes()
    monkeypatch.setattr(collecting, "sample", None)
    for algorithm in ("grpo", "ppo"):
        with pytest.raises(ValueError, match=r"holds a checkpoint already; .*overwrit"):
            small_run(algorithm, checkpoint_dir=tmp_path)
    assert (tmp_path / NAME).read_bytes() == before


def test_overwrite_starts_anew(tmp_path):
    small_run("ppo", rollouts=2, checkpoint_dir=tmp_path)
    first = small_run(rollouts=1, checkpoint_dir=tmp_path, overwrite=True)
    assert first == small_run(rollouts=1)
    state = checkpoint.load(tmp_path, CPU)
    assert state["algorithm"] == "grpo" and len(state["rows"]) == 1


def test_what_is_to_be_overwritten_stays_until_there_is_something_new(tmp_path):
    small_run("ppo", rollouts=1, checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match="must return 16 numbers"):
        small_run(reward=lambda **_: [], checkpoint_dir=tmp_path, overwrite=True)
    assert checkpoint.load(tmp_path, CPU)["algorithm"] == "ppo"


def test_one_process_at_a_time_trains_in_a_folder(tmp_path, monkeypatch):
    with claim(tmp_path, may_exist=False), monkeypatch.context() as patch:
        patch.setattr(collecting, "sample", None)
        with pytest.raises(ValueError, match="another process trains in"):
            small_run(checkpoint_dir=tmp_path)
    assert len(small_run(rollouts=1, checkpoint_dir=tmp_path)) == 1


def test_the_folder_is_taken_as_long_as_a_run_lasts(tmp_path):
    def reward(completions, **_):
        with pytest.raises(ValueError, match="another process"):
            claim(tmp_path, may_exist=True).__enter__()
        return fixed_noise(completions)

    small_run(rollouts=2, reward=reward, checkpoint_dir=tmp_path)
    with claim(tmp_path, may_exist=True):
        pass


def test_a_run_that_fails_gives_the_folder_back(tmp_path):
    with pytest.raises(ValueError, match="must return 16") as caught:
        small_run(reward=lambda **_: [], checkpoint_dir=tmp_path)
    with claim(tmp_path, may_exist=False):
        assert caught.traceback  # the frames of the failed run are still there


# Another run than the one that was saved


def test_another_algorithm_is_refused(tmp_path):
    small_run(rollouts=1, checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match="a run of 'grpo', not of 'ppo'"):
        small_run("ppo", checkpoint_dir=tmp_path, resume=True)


def test_another_model_is_refused(tmp_path):
    small_run(rollouts=1, checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match="model"):
        small_run(model=gpt2(), checkpoint_dir=tmp_path, resume=True)


CHANGES = {
    "seed": 1,
    "prompts_per_rollout": 6,
    "group_size": 2,
    "max_new_tokens": 20,
    "temperature": 0.9,
    "minibatches": 4,
    "epochs": 2,
    "micro_batch_size": 8,
    "share_prompts": True,
    "learning_rate": 1e-3,
    "warmup_updates": 1,
    "schedule": "linear",
    "weight_decay": 0.1,
    "max_grad_norm": 0.5,
    "hyperparameters": {"epsilon": 0.3},
    "normaliser": "token_mean",
    "max_length": 100,
    "entropy_bonus": 0.1,
    "beta": 0.1,
    "kl_in": "reward",
    "kl_estimator": "k1",
    "gamma": 0.9,
    "lam": 0.9,
    "critic_learning_rate": 1e-2,
    "value_clip": None,
    "eval_every": 5,
    "eval_problems": 5,
    "eval_samples": 2,
    "allow_on_policy": True,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "dtype": "float64",
    "dynamic_sampling": True,
    "max_sampling_rounds": 5,
    "overlong_share": 0.1,
    "overlong_filtering": True,
    "rollout_dtype": "bfloat16",
    "router_noise": 0.1,
    "max_rollout_weight": 2.0,
    "replay": "R3",
    "router_shift": True,
    "router_shift_floor": 0.5,
    "placement": "after_clip",
    "detach_shift": False,
    "router_aux_loss": 0.0,
    "router_rate": 2.0,
    "sampler_delay": 2,
    "optimizer": "sgd",
    "trust_sampler": True,
    "measure_drift": True,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_is_refused_by_name(name):
    before, after = asdict(SMALL), {**asdict(SMALL), name: CHANGES[name]}
    state = {"algorithm": "grpo", "config": before}
    message = f"{name} was {before[name]!r}, now {CHANGES[name]!r}"
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        check_matches(state, "grpo", after, MAY_CHANGE_ON_RESUME)
    assert message in str(caught.value)
    check_matches(state, "grpo", before, MAY_CHANGE_ON_RESUME)


def test_every_setting_is_fixed_or_free():
    assert CHANGES.keys() | MAY_CHANGE_ON_RESUME == asdict(TrainConfig()).keys()
    assert CHANGES.keys().isdisjoint(MAY_CHANGE_ON_RESUME)


def test_changed_settings_are_refused_by_train(tmp_path):
    small_run(rollouts=1, checkpoint_dir=tmp_path)
    message = "seed was 0, now 5; temperature was 1.0, now 0.5"
    with pytest.raises(ValueError, match=message):
        small_run(seed=5, temperature=0.5, checkpoint_dir=tmp_path, resume=True)


def test_settings_that_do_not_act_may_change(tmp_path):
    whole = small_run(rollouts=3)
    small_run(rollouts=2, checkpoint_dir=tmp_path)
    resumed = small_run(
        rollouts=3, checkpoint_every=1, checkpoint_dir=tmp_path, resume=True
    )
    assert resumed["reward"] == whole["reward"]


def test_another_task_or_fewer_rollouts_are_refused(tmp_path):
    small_run(rollouts=2, checkpoint_dir=tmp_path)
    again = {"checkpoint_dir": tmp_path, "resume": True}
    with pytest.raises(ValueError, match=r"with the task Arithmetic\(min_terms=2"):
        small_run(rollouts=3, task=Arithmetic(min_terms=3), **again)
    with pytest.raises(ValueError, match="holds 2 rollouts already, more than the 1"):
        small_run(rollouts=1, **again)


def test_another_reward_is_refused(tmp_path):
    small_run(rollouts=1, reward=fixed_noise, checkpoint_dir=tmp_path)
    again = {"rollouts": 2, "checkpoint_dir": tmp_path, "resume": True}
    said = r"with the reward .*fixed_noise, not with .*correctness; give the same"
    with pytest.raises(ValueError, match=said):
        small_run(**again)
    with pytest.raises(ValueError, match=r"fixed_noise, not with .*Interrupting"):
        small_run(reward=Interrupting(when=9), **again)
    assert len(small_run(reward=fixed_noise, **again)) == 2


def test_a_run_does_not_go_on_with_other_dice(tmp_path, monkeypatch):
    small_run(rollouts=1, checkpoint_dir=tmp_path)
    monkeypatch.setenv("REFIMPL_SALT", "4")
    with pytest.raises(ValueError, match="made with REFIMPL_SALT=0, now it is 4"):
        small_run(rollouts=2, checkpoint_dir=tmp_path, resume=True)
    salted = small_run(rollouts=2)
    small_run(rollouts=1, checkpoint_dir=tmp_path, overwrite=True)
    assert small_run(rollouts=2, checkpoint_dir=tmp_path, resume=True) == salted


# All or nothing


KILLED = """
import os, signal, sys, torch
from tests.worlds import small_run

moment, folder, calls = sys.argv[1], sys.argv[2], []

def at(module, name, call, half=b""):
    original = getattr(module, name)
    def spy(*arguments, **keywords):
        calls.append(None)
        if len(calls) == call:
            if half:
                arguments[1].write(half)
                arguments[1].flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **keywords)
    setattr(module, name, spy)

if moment == "writing":
    at(torch, "save", 2, b"half a check")
if moment == "swapping":
    at(os, "replace", 2)
if moment == "training":
    at(torch.optim.AdamW, "step", 4)
small_run(rollouts=4, checkpoint_every=1, checkpoint_dir=folder)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["writing", "swapping", "training"])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(moment, tmp_path):
    """In the midst of the second save, or of the second rollout: nothing can be done
    after SIGKILL."""
    root = Path(__file__).parents[2]
    child = [sys.executable, "-c", KILLED, moment, str(tmp_path)]
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        child, cwd=root, env={**os.environ, "PYTHONPATH": path}, capture_output=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert len(checkpoint.load(tmp_path, CPU)["rows"]) == 1
    resumed = small_run(rollouts=4, checkpoint_dir=tmp_path, resume=True)
    whole = small_run(rollouts=4)
    assert resumed == whole
    assert same_weights(resumed.model, whole.model)
    assert {path.name for path in tmp_path.iterdir()} == {NAME, ".lock"}


def test_an_error_in_a_later_rollout_leaves_the_checkpoint(tmp_path):
    calls = []

    def fails_third(prompts, completions, **columns):
        calls.append(prompts)
        if len(calls) == 3:
            raise RuntimeError("the judge is away")
        return Arithmetic.reward(prompts, completions, **columns)

    settings = {"reward": fails_third, "rollouts": 4, "checkpoint_dir": tmp_path}
    with pytest.raises(ValueError, match="the judge is away"):
        small_run(checkpoint_every=1, **settings)
    assert small_run(resume=True, **settings) == small_run(rollouts=4)


# Ctrl-C


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_an_interrupted_run_can_go_on(algorithm, tmp_path):
    reward = Interrupting(when=2)
    settings = {"rollouts": 4, "reward": reward, "checkpoint_dir": tmp_path}
    with pytest.warns(UserWarning, match="stopped after 2 of 4 rollouts"):
        first = small_run(algorithm, **settings)
    assert len(checkpoint.load(tmp_path, CPU)["rows"]) == len(first) == 2
    resumed = small_run(algorithm, resume=True, **settings)
    whole = small_run(algorithm, rollouts=4)
    assert resumed == whole and resumed.ended is None
    assert same_weights(resumed.model, whole.model)


def test_a_second_ctrl_c_leaves_the_last_checkpoint(tmp_path):
    settings = {"reward": Interrupting(when=3, times=2), "checkpoint_dir": tmp_path}
    with pytest.warns(UserWarning, match="stopped after 2 of 4 rollouts"):
        small_run(rollouts=4, checkpoint_every=1, **settings)
    assert len(checkpoint.load(tmp_path, CPU)["rows"]) == 2
    assert small_run(rollouts=4, resume=True, **settings) == small_run(rollouts=4)


def mine(*_):
    """A handler that was there before."""


@pytest.fixture
def handler():
    before = signal.signal(signal.SIGINT, mine)
    yield mine
    signal.signal(signal.SIGINT, before)


def test_the_handler_of_ctrl_c_is_given_back(handler):
    seen = []

    def spy(prompts, completions, **columns):
        seen.append(signal.getsignal(signal.SIGINT))
        return Arithmetic.reward(prompts, completions, **columns)

    small_run(rollouts=1, reward=spy)
    assert seen[0] is not handler  # it was taken during the run
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.warns(UserWarning, match="stopped after 1 of 3"):
        small_run(reward=Interrupting(when=1))
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(ValueError, match="must return 16 numbers"):
        small_run(reward=lambda **_: [])
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(StalenessError):
        small_run(rollouts=1, learning_rate=1e-12)
    assert signal.getsignal(signal.SIGINT) is handler


def test_off_the_main_thread_ctrl_c_stays_with_the_main_thread(handler):
    seen = []

    def spy(prompts, completions, **columns):
        seen.append(signal.getsignal(signal.SIGINT))
        return Arithmetic.reward(prompts, completions, **columns)

    arguments = {"model": warm_model(), "tokenizer": TOKENIZER, "progress": False}
    thread = threading.Thread(
        target=lambda: train("grpo", config=SMALL, reward=spy, **arguments)
    )
    thread.start()
    thread.join()
    assert seen == [handler] * SMALL.rollouts
