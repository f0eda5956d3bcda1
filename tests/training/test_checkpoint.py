"""A run that was stopped and continued is the run that was never stopped; no file is
half written."""

import os
import re
from dataclasses import asdict, replace

import pytest
import torch
from filelock import FileLock

from refimpl import ALGORITHMS, checkpoint, sampling
from refimpl.advantages import group_centred
from refimpl.checkpoint import MAY_CHANGE, NAME, Checkpoint, check_same, load, shared
from refimpl.entropy import AdaptiveEntropy
from refimpl.files import write
from refimpl.hooks import Samples
from refimpl.loss_terms import KL
from refimpl.samplers import Delayed
from refimpl.tasks import Arithmetic
from refimpl.validation import UserError
from tests.worlds import (
    EOS,
    Interrupting,
    fixed_noise,
    gpt2,
    prepared,
    random_model,
    same_weights,
    small_run,
)


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


METHODS = {
    "grpo": ("grpo", {"epochs": 2, "entropy_bonus": 0.01, "eval_every": 3}),
    "ppo, kl in the reward": ("ppo", {"beta": 0.1, "kl_in": "reward"}),
    "a critic that goes before": ("sao", {"critic_warmup": 1}),
    "late and rounded": ("grpo", {"sampler_delay": 2, "rollout_dtype": "int8"}),
    "a bonus that adapts": ("grpo", {"loss_terms": [AdaptiveEntropy(5.0, 0.1)]}),
    "kl in the loss": ("reinforce", {"beta": 0.1, "eval_samples": 2, "eval_every": 3}),
}


@pytest.mark.parametrize("method", METHODS)
def test_four_rollouts_are_two_and_two_more(method, tmp_path):
    """Weights, optimiser, critic, reference, history and samples are in the file.

    The model given on resuming lends its shape alone, to the reference as well; the
    shorter run measured its last rollout, and the longer one need not.
    """
    algorithm, settings = METHODS[method]
    settings = {"eval_every": 2, "max_new_tokens": 12, **settings}
    settings["reward"] = fixed_noise
    straight, parts = tmp_path / "straight", str(tmp_path / "new" / "parts")

    def run(rollouts, folder, **given):
        given |= {"hooks": [Samples(every=2)], "checkpoint_dir": folder}
        return small_run(algorithm, rollouts=rollouts, **settings | given)

    whole, first = run(4, straight), run(2, parts)
    resumed = run(4, parts, model=random_model(), resume=True)
    assert len(first) == 2 and resumed == whole and len(resumed.samples) == 8
    assert same_weights(resumed.model, whole.model)
    assert not same_weights(resumed.model, first.model)
    one, other = load(straight), load(parts)
    assert identical(one, other) and one["optimizer"]["state"]
    assert ("critic" in one) == (algorithm in ("ppo", "sao"))


def test_a_checkpoint_changes_nothing_in_the_run(tmp_path, monkeypatch):
    saved, save = [], Checkpoint.save

    def spy(self, run):
        saved.append(len(run.history))
        save(self, run)

    monkeypatch.setattr(Checkpoint, "save", spy)
    kept = small_run(hooks=[hook := Checkpoint(tmp_path, every=2)])
    assert saved == [2, 3]
    with pytest.raises(UserError, match="holds a checkpoint already"):
        small_run(hooks=[hook])
    plain = small_run()
    assert kept == plain and same_weights(kept.model, plain.model)
    assert {path.name for path in tmp_path.iterdir()} == {NAME, ".lock"}


def test_resuming_a_finished_run_trains_no_more(tmp_path, monkeypatch):
    whole = small_run(rollouts=2, checkpoint_dir=tmp_path)
    monkeypatch.setattr(sampling, "sample", None)
    again = small_run(rollouts=2, checkpoint_dir=tmp_path, resume=True)
    assert again == whole and same_weights(again.model, whole.model)


def test_an_object_that_resumes_twice_goes_on_from_the_newest_file(tmp_path):
    settings = {"reward": fixed_noise, "max_new_tokens": 12}
    whole = small_run(rollouts=4, **settings)
    small_run(rollouts=2, checkpoint_dir=tmp_path, **settings)
    hook = Checkpoint(tmp_path, resume=True)
    parts = [small_run(rollouts=n, hooks=[hook], **settings) for n in (3, 4)]
    assert parts[1] == whole and same_weights(parts[1].model, whole.model)


def test_a_damaged_file_is_one_clear_error(tmp_path):
    """Cut off; a weight changed, where the file still opens; another version's."""
    small_run(rollouts=1, checkpoint_dir=tmp_path)
    path = tmp_path / NAME
    whole = path.read_bytes()
    changed, middle = bytearray(whole), len(whole) // 2
    changed[middle] ^= 255
    for content in (whole[:-2000], changed):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"not a readable checkpoint .*Delete it"):
            small_run(checkpoint_dir=tmp_path, resume=True)
    path.write_bytes(whole)
    for content in (torch.zeros(2), load(tmp_path) | {"version": 8}):
        torch.save(content, path)
        with pytest.raises(ValueError, match="or from another version"):
            load(tmp_path)


def test_a_file_with_code_in_it_is_not_run(tmp_path):
    """Pickle can call anything; a checkpoint is read as weights alone."""

    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "exploded"),))

    torch.save({"version": checkpoint.VERSION, "model": Bomb()}, tmp_path / NAME)
    with pytest.raises(ValueError, match="not a readable checkpoint"):
        load(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_a_checkpoint_is_replaced_only_if_asked(tmp_path, monkeypatch):
    small_run("ppo", rollouts=1, checkpoint_dir=tmp_path)
    before = (tmp_path / NAME).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(sampling, "sample", None)
        with pytest.raises(ValueError, match="holds a checkpoint already"):
            small_run("ppo", checkpoint_dir=tmp_path)
    anew = {"rollouts": 1, "checkpoint_dir": tmp_path, "overwrite": True}
    with pytest.raises(ValueError, match="must return 16 numbers"):
        small_run(reward=lambda **_: [], **anew)
    assert (tmp_path / NAME).read_bytes() == before
    assert small_run(**anew) == small_run(rollouts=1)
    state = load(tmp_path)
    assert state["identity"]["algorithm"] == "grpo" and len(state["rows"]) == 1


def test_one_process_at_a_time_trains_in_a_folder(tmp_path):
    def reward(completions, **_):
        with pytest.raises(ValueError, match="another process trains in"):
            small_run(checkpoint_dir=tmp_path, overwrite=True)
        return fixed_noise(completions)

    assert len(small_run(rollouts=2, reward=reward, checkpoint_dir=tmp_path)) == 2
    with pytest.raises(ValueError, match="must return 16") as caught:
        small_run(reward=lambda **_: [], checkpoint_dir=tmp_path, overwrite=True)
    with FileLock(tmp_path / checkpoint.LOCK, timeout=0):
        assert caught.traceback  # the frames of the failed run are still there


def test_every_setting_is_fixed_but_those_that_change_nothing_learned():
    assert {"device", "rollouts"} == MAY_CHANGE
    run = prepared()
    before = shared(run)
    assert asdict(run.config).keys() - before.keys() == MAY_CHANGE
    own = "algorithm objective advantages task reward EOS REFIMPL_SALT objects teacher"
    assert before.keys() - asdict(run.config).keys() == {*own.split()}
    assert before["EOS"] == EOS
    for name, value in before.items():
        said = re.escape(f"{name} was {value!r}, now 'x'")
        with pytest.raises(ValueError, match=said):
            check_same({"identity": before, "rows": []}, before | {name: "x"}, 1)


class Bare:
    """A term of one's own, whose repr is an address."""

    def __call__(self, part, reading, weight):
        return -0.1 * (reading.entropy * weight).sum(), {}


SAPO = ALGORITHMS["sapo"]
OTHERS = {
    "algorithm": ({"algorithm": "ppo"}, "algorithm was 'grpo', now 'ppo'"),
    "estimator": (
        {"algorithm": replace(ALGORITHMS["grpo"], advantages=group_centred)},
        "advantages was .*group_relative.* now .*group_centred",
    ),
    "objective": (
        {"algorithm": replace(ALGORITHMS["grpo"], objective=SAPO.objective)},
        "objective was .*algorithms.ppo.objective', now .*algorithms.sapo.objective",
    ),
    "model": ({"model": gpt2()}, "a model of another shape"),
    "settings": (
        {"seed": 5, "minibatches": 4},
        "seed was 0, now 5; minibatches was 2, now 4",
    ),
    "task": ({"task": Arithmetic(min_terms=3)}, "task was .*terms=2.*, now .*terms=3"),
    "reward": (
        {"reward": Arithmetic.reward},
        "fixed_noise', now 'refimpl.tasks.arithmetic.correctness'",
    ),
    "reward, an object": ({"reward": Interrupting(when=9)}, "Interrupting object>'"),
    "a term less": ({"loss_terms": [Bare()]}, "objects was"),
    "another coefficient": ({"loss_terms": [Bare(), KL(0.2, "k2")]}, "objects was"),
    "another sampler": ({"sampler": Delayed(1)}, "objects was"),
    "length": ({"rollouts": 1}, "holds 2 rollouts already, more than the 1"),
}


def test_another_run_than_the_one_that_was_saved_is_refused(tmp_path):
    """An object is known by its class and fields; without a repr, by its class."""
    settings = {"checkpoint_dir": tmp_path, "reward": fixed_noise}
    settings |= {"loss_terms": [Bare(), KL(0.1, "k2")], "sampler": Delayed(2)}
    small_run(rollouts=2, **settings)
    settings |= {"loss_terms": [Bare(), KL(0.1, "k2")], "sampler": Delayed(2)}
    for change, said in OTHERS.values():
        with pytest.raises(ValueError, match=said):
            small_run(**{"rollouts": 3, "resume": True, **settings, **change})
    free = {"hooks": [Samples()], "resume": True}
    resumed = small_run(rollouts=3, **settings, **free)
    assert [sample["step"] for sample in resumed.samples] == 4 * [2]
    with pytest.raises(UserError, match="checkpoint_dir and Checkpoint"):
        small_run(**settings, hooks=[Checkpoint(tmp_path, resume=True)])


# Files that a run writes: whole or not at all, and over nobody's work


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_what_fails_leaves_nothing_behind_and_the_old_file_untouched(error, tmp_path):
    old = tmp_path / "old"
    old.write_text("as it was")

    def fill(file):
        file.write("half of")
        file.flush()
        raise error("in the midst")

    for path in (old, tmp_path / "new"):
        with pytest.raises((error, UserError), match="in the midst"):
            write(path, fill)
    assert os.listdir(tmp_path) == ["old"] and old.read_text() == "as it was"


def test_a_file_is_brought_to_the_disk_then_renamed(tmp_path, monkeypatch):
    """In another order, a loss of power leaves the right name and no content."""
    asked, sync, rename = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda h: (asked.append("sync"), sync(h))[1])
    renamed = lambda *two: (asked.append("rename"), rename(*two))[1]  # noqa: E731
    monkeypatch.setattr(os, "replace", renamed)
    write(tmp_path / "one", "text")
    assert asked == ["sync", "rename"]


def test_who_reads_while_a_file_is_written_has_the_old_one_whole(tmp_path):
    """The new one is another file, which takes the name over, also behind a link."""
    (path := tmp_path / "file").write_text("old")
    (link := tmp_path / "link").symlink_to("file")
    with open(path) as reader:
        write(link, "new\n語")
        assert reader.read() == "old" and path.read_bytes() == "new\n語".encode()
    assert link.is_symlink()


@pytest.mark.parametrize(
    "name", ["folder", "link", "file/below", "nul\0", "\ud800", "n" * 400]
)
def test_where_nothing_can_be_written_is_one_sentence(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/dev/null")  # which root could replace
    with pytest.raises(UserError, match="cannot write a file to"):
        write(f"{tmp_path}/{name}", "text")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "link"]
    assert not os.path.isfile("/dev/null")
