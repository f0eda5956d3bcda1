"""The warm start: shipped or cached by its settings, all or nothing; what it can do."""

import functools
import json
import shutil
import threading
import tomllib
import warnings
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import transformers
from filelock import FileLock

from refimpl import moe
from refimpl import sft as module
from refimpl.rollout import sample
from refimpl.sft import SHIPPED, WarmStart, cache_folder, warm_start
from refimpl.tasks import Arithmetic, rare_careful
from tests.make_starts import STARTS
from tests.worlds import PAD, TOKENIZER, random_moe, same_weights

QUICK = WarmStart(skill_steps=4, habit_steps=3, batch_size=4)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the test's own."""
    monkeypatch.setenv("REFIMPL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def trainings(monkeypatch):
    """A list that grows by the settings of every training."""
    done, train = [], module._train
    monkeypatch.setattr(
        module,
        "_train",
        lambda settings, *rest: done.append(settings) or train(settings, *rest),
    )
    return done


def never(*_, **__):
    raise AssertionError("trained again")


def kept(cache) -> list[str]:
    """What lies in a cache, locks apart."""
    return [path.name for path in cache.iterdir() if path.suffix != ".lock"]


# The cache


def test_the_second_call_reads_what_the_first_one_trained(cache, monkeypatch):
    model, tokenizer, losses = warm_start(QUICK)
    monkeypatch.setattr(module, "_train", never)
    again, again_tokenizer, again_losses = warm_start(QUICK)
    assert same_weights(again, model)
    assert again_losses == losses
    assert len(losses) == 4 + 3
    assert again_tokenizer("3+9=;#?")["input_ids"] == tokenizer("3+9=;#?")["input_ids"]


def test_fresh_trains_again_and_gets_the_same(cache, trainings):
    model, _, losses = warm_start(QUICK)
    again, _, again_losses = warm_start(QUICK, fresh=True)
    assert trainings == [QUICK, QUICK]
    assert again_losses == losses
    assert same_weights(again, model)
    assert kept(cache) == [QUICK.folder().name]


def test_training_itself_asks_no_cache(cache, trainings):
    model, tokenizer, losses = module.train(QUICK)
    again = module.train(QUICK)[0]
    assert trainings == [QUICK, QUICK]
    assert same_weights(again, model) and len(losses) == 7
    assert len(tokenizer) == model.config.vocab_size and not model.training
    assert not cache.exists()


def test_training_itself_trains_what_is_shipped_too(cache, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "_train", lambda settings, *_: seen.append(settings))
    module.train(WarmStart())
    assert seen == [WarmStart()]


def test_training_depends_on_the_seed_alone(cache):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = warm_start(QUICK)[0]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert same_weights(warm_start(QUICK, fresh=True)[0], first)
    assert not same_weights(warm_start(replace(QUICK, seed=1))[0], first)


OTHER = {
    "preset": "small",
    "world": rare_careful(),
    "seed": 1,
    "skill_steps": 5,
    "skill_mix": (0.8, 0.1, 0.1),
    "skill_learning_rate": 1e-3,
    "habit_steps": 5,
    "habit_learning_rate": 1e-3,
    "batch_size": 5,
}


def test_every_setting_has_a_folder_of_its_own(cache):
    assert OTHER.keys() == {field.name for field in fields(WarmStart)}
    settings = [QUICK, *(replace(QUICK, **{name: OTHER[name]}) for name in OTHER)]
    settings.append(replace(QUICK, world=Arithmetic(max_terms=4)))
    folders = {setting.folder() for setting in settings}
    assert len(folders) == len(settings)
    assert {folder.parent for folder in folders} == {cache}
    assert WarmStart(**vars(QUICK)).folder() == QUICK.folder()


def test_other_settings_train_another_model(cache, trainings):
    other = replace(QUICK, skill_mix=(0.0, 0.0, 1.0))
    model, again = warm_start(QUICK)[0], warm_start(other)[0]
    assert trainings == [QUICK, other]
    assert not same_weights(model, again)


def test_the_recipe_names_the_folder_too(cache, monkeypatch):
    before = QUICK.folder()
    monkeypatch.setattr(module, "RECIPE", module.RECIPE + 1)
    assert QUICK.folder() != before


def test_where_the_cache_is(monkeypatch, tmp_path):
    for name in ("REFIMPL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "refimpl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "refimpl"
    monkeypatch.setenv("REFIMPL_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"


# A damaged cache


def flip_a_bit(folder):
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def cut(name):
    def damage(folder):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-40])

    return damage


def without_losses(folder):
    record = json.loads((folder / "start.json").read_text())
    (folder / "start.json").write_text(json.dumps({"sha256": record["sha256"]}))


DAMAGE = {
    "a bit of a weight": flip_a_bit,
    "weights cut off": cut("model.safetensors"),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "empty weights": lambda folder: (folder / "model.safetensors").write_bytes(b""),
    "record cut off": cut("start.json"),
    "record of another kind": lambda folder: (folder / "start.json").write_text("[]"),
    "record without losses": without_losses,
    "configuration cut off": cut("config.json"),
    "another shape": lambda folder: (folder / "config.json").write_text(
        (folder / "config.json").read_text().replace(": 192", ": 100")
    ),
    "no tokenizer": lambda folder: (folder / "tokenizer_config.json").unlink(),
    "tokenizer cut off": cut("tokenizer.json"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_policy_in_the_cache_is_trained_again(cache, trainings, damage):
    model, _, losses = warm_start(QUICK)
    DAMAGE[damage](QUICK.folder())
    with pytest.warns(UserWarning, match=r"is damaged .*; it is trained again") as said:
        healed, _, healed_losses = warm_start(QUICK)
    assert str(QUICK.folder()) in str(said[0].message)
    assert trainings == [QUICK, QUICK]
    assert same_weights(healed, model) and healed_losses == losses
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same_weights(warm_start(QUICK)[0], model)
    assert trainings == [QUICK, QUICK] and kept(cache) == [QUICK.folder().name]


def test_what_an_older_version_left_in_the_cache_is_replaced(cache, trainings):
    """Without a record there is nothing to check; it is no damage either."""
    folder = QUICK.folder()
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text("old")
    (folder / "losses.json").write_text("[1.0]")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warm_start(QUICK)
        warm_start(QUICK)
    assert trainings == [QUICK] and not (folder / "losses.json").exists()


# Several processes (here threads: the locks are on files)


def in_threads(*works) -> list:
    """What each returns; they run at the same time, and none may wait for ever."""
    found = [None] * len(works)

    def do(i, work):
        found[i] = work()

    threads = [
        threading.Thread(target=do, args=pair, daemon=True) for pair in enumerate(works)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive(), "still waiting"
    return found


def test_three_that_need_the_same_policy_train_it_once(cache, trainings):
    models = [m for m, *_ in in_threads(*[lambda: warm_start(QUICK)] * 3)]
    assert trainings == [QUICK]
    assert all(same_weights(models[0], model) for model in models)
    assert kept(cache) == [QUICK.folder().name]


def test_another_policy_need_not_wait(cache):
    other = replace(QUICK, seed=1)
    cache.mkdir()
    with FileLock(QUICK.folder().with_name(QUICK.folder().name + ".lock")):
        assert in_threads(lambda: warm_start(other))[0] is not None


def test_whoever_waits_reads_what_the_first_one_trained(cache, monkeypatch):
    """The lock is asked for before the cache is looked at."""
    model = warm_start(QUICK)[0]
    hidden = QUICK.folder().with_name("hidden")
    QUICK.folder().rename(hidden)
    monkeypatch.setattr(module, "_train", never)
    waiting, acquire = threading.Event(), FileLock.acquire

    def spy(self, *arguments, **keywords):
        waiting.set()
        return acquire(self, *arguments, **keywords)

    lock = FileLock(QUICK.folder().with_name(QUICK.folder().name + ".lock"))
    with lock:
        monkeypatch.setattr(FileLock, "acquire", spy)
        found = []
        thread = threading.Thread(
            target=lambda: found.append(warm_start(QUICK)), daemon=True
        )
        thread.start()
        assert waiting.wait(timeout=60)
        hidden.rename(QUICK.folder())
    thread.join(timeout=60)
    assert same_weights(found[0][0], model)


# All or nothing


def interrupt_training(monkeypatch):
    """Ctrl-C at the second optimiser step."""
    steps, step = [], torch.optim.AdamW.step

    def interrupted(self, *arguments, **keywords):
        steps.append(self)
        if len(steps) == 2:
            raise KeyboardInterrupt
        return step(self, *arguments, **keywords)

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted)


def interrupt_saving(monkeypatch):
    """Ctrl-C after model and tokenizer are on the disk, before the losses are."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupted)


@pytest.mark.parametrize("interrupt", [interrupt_training, interrupt_saving])
def test_an_interrupted_run_leaves_nothing_behind(cache, monkeypatch, interrupt):
    with monkeypatch.context() as patch:
        interrupt(patch)
        with pytest.raises(KeyboardInterrupt):
            warm_start(QUICK)
    assert kept(cache) == []
    assert len(warm_start(QUICK)[2]) == 7


@pytest.mark.parametrize("interrupt", [interrupt_training, interrupt_saving])
def test_an_interrupted_fresh_run_leaves_the_old_one(cache, monkeypatch, interrupt):
    model, _, losses = warm_start(QUICK)
    with monkeypatch.context() as patch:
        interrupt(patch)
        with pytest.raises(KeyboardInterrupt):
            warm_start(QUICK, fresh=True)
    monkeypatch.setattr(module, "_train", never)
    again, _, again_losses = warm_start(QUICK)
    assert same_weights(again, model)
    assert again_losses == losses


def test_an_unknown_device_is_refused_before_training(cache, monkeypatch):
    monkeypatch.setattr(module, "_train", never)
    with pytest.raises(ValueError, match="unknown device 'gpu'"):
        warm_start(QUICK, device="gpu")


# What is learned from


def test_the_loss_falls_on_the_response_and_its_end_alone():
    rows = Arithmetic().demonstrations(10, 0)
    batches = module._batches(rows, TOKENIZER, 4, "cpu")
    assert [len(ids) for ids, _ in batches] == [4, 4, 2]
    pairs = [pair for ids, labels in batches for pair in zip(ids, labels, strict=True)]
    for row, (ids, labels) in zip(rows, pairs, strict=True):
        prompt = TOKENIZER(row["prompt"])["input_ids"]
        response = [*TOKENIZER(row["completion"])["input_ids"], TOKENIZER.eos_token_id]
        end = len(prompt) + len(response)
        padding = len(ids) - end
        assert ids.tolist() == prompt + response + [TOKENIZER.pad_token_id] * padding
        assert labels.tolist() == [-100] * len(prompt) + response + [-100] * padding


def test_adam_remembers_a_tenth_and_a_twentieth(monkeypatch):
    """β₁ = 0.9 and β₂ = 0.95, as in RL."""
    seen, step = [], torch.optim.AdamW.step

    def spy(self, *arguments, **keywords):
        found = step(self, *arguments, **keywords)
        if not seen:
            for p in self.param_groups[0]["params"]:
                state = self.state[p]
                seen.append((p.grad, state["exp_avg"], state["exp_avg_sq"]))
            seen[:] = [tuple(x.clone() for x in found) for found in seen]
        return found

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    module.train(QUICK)
    for gradient, first, second in seen:
        assert torch.allclose(first, 0.1 * gradient)
        assert torch.allclose(second, 0.05 * gradient**2)


def test_the_two_stages_show_the_mixes_that_were_asked_for(cache, monkeypatch):
    shown = []
    demonstrations = Arithmetic.demonstrations

    def spy(self, n, seed, mix=None):
        shown.append((n, mix))
        return demonstrations(self, n, seed, mix)

    monkeypatch.setattr(Arithmetic, "demonstrations", spy)
    warm_start(replace(QUICK, world=rare_careful()))
    assert shown == [(16, QUICK.skill_mix), (12, rare_careful().habit_mix)]


# What the package ships


def test_the_policies_of_the_chapters_are_read_without_a_cache(cache, monkeypatch):
    monkeypatch.setattr(module, "_train", never)
    for settings in STARTS.values():
        model, tokenizer, losses = warm_start(settings)
        assert len(losses) == settings.skill_steps + settings.habit_steps
        assert len(tokenizer) == model.config.vocab_size
        assert not model.training
    assert not cache.exists()


def test_what_is_shipped_is_what_the_settings_say(monkeypatch):
    shipped = {s.shipped().name: s for s in STARTS.values()}
    assert shipped == STARTS
    assert replace(WarmStart(), seed=1).shipped() is None
    assert WarmStart(world=Arithmetic(max_terms=4)).shipped() is None


def test_a_salt_changes_what_is_trained_not_what_is_shipped(cache, monkeypatch):
    shipped, trained, folder = warm_start()[0], warm_start(QUICK)[0], QUICK.folder()
    monkeypatch.setenv("REFIMPL_SALT", "1")
    assert same_weights(warm_start()[0], shipped)
    assert QUICK.folder() != folder
    assert not same_weights(warm_start(QUICK)[0], trained)


def test_starts_of_ones_own_are_trained_once(cache, monkeypatch, trainings):
    monkeypatch.setenv("REFIMPL_OWN_STARTS", "1")
    assert all(settings.shipped() is None for settings in STARTS.values())
    own = warm_start(QUICK)[0]
    assert same_weights(warm_start(QUICK)[0], own) and trainings == [QUICK]
    monkeypatch.setenv("REFIMPL_OWN_STARTS", "0")
    assert WarmStart().shipped() == SHIPPED / "dense"


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A copy of the shipped policies that a test may damage."""
    copied = shutil.copytree(SHIPPED, tmp_path / "starts")
    monkeypatch.setattr(module, "SHIPPED", copied)
    return copied / "dense"


def test_a_damaged_policy_is_not_used(broken):
    weights = broken / "model.safetensors"
    whole = weights.read_bytes()
    for damaged in (whole[:-1], whole[:-9] + b"123456789"):
        weights.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"dense.* is damaged: its SHA-256 is [0-9a-f]{12}"
        ):
            warm_start()
    weights.unlink()
    with pytest.raises(ValueError, match=r"that of no file.*REFIMPL_OWN_STARTS=1"):
        warm_start()


UNREADABLE = {
    "an unknown model": {
        "model_type": "qwen99",
        "architectures": ["Qwen99ForCausalLM"],
    },
    "a layer too many": {"num_hidden_layers": 3},
    "another width": {"hidden_size": 32},
}


@pytest.mark.parametrize("changed", UNREADABLE.values(), ids=UNREADABLE)
def test_a_policy_that_transformers_cannot_read_is_named(broken, changed):
    """As a future version of transformers might read our files."""
    path = broken / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    says = rf"transformers {transformers.__version__} .*'dense'.*REFIMPL_OWN_STARTS=1"
    with pytest.raises(ValueError, match=says):
        warm_start()


def test_the_shipped_files_go_into_a_wheel():
    root = SHIPPED.parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["refimpl"]
    files = {path for path in SHIPPED.rglob("*") if path.is_file()}
    packed = {path for pattern in patterns for path in SHIPPED.parent.glob(pattern)}
    assert files <= packed and len(files) == 9


def test_a_cache_that_cannot_be_written_costs_nothing_but_a_warning(
    tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("REFIMPL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="set REFIMPL_CACHE to a folder"):
        model, _, losses = warm_start(QUICK)
    assert len(losses) == 7 and not model.training


# What was learned


@pytest.fixture(scope="module")
def anew(tmp_path_factory):
    """name → a policy trained here, with its losses; each is trained once."""
    folder = tmp_path_factory.mktemp("anew")

    @functools.cache
    def trained(name: str):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("REFIMPL_CACHE", str(folder))
            model, _, losses = warm_start(STARTS[name], fresh=True)
        return model, losses

    return trained


@pytest.fixture(params=["shipped", pytest.param("anew", marks=pytest.mark.slow)])
def start(request, anew):
    """name → model and losses: as shipped, and as this machine trains them."""
    if request.param == "anew":
        return anew
    return lambda name: warm_start(STARTS[name])[::2]


@pytest.mark.parametrize("name", STARTS)
def test_the_loss_fell(start, name):
    losses, settings = start(name)[1], STARTS[name]
    assert losses[0] > 2.5  # near ln 18: nothing known
    end = losses[settings.skill_steps - 50 : settings.skill_steps]
    assert sum(end) / 50 < 0.5


@pytest.mark.parametrize("name", STARTS)
def test_the_policy_can_add_but_seldom_does(start, name):
    """Room for RL: the skill is there, the habit is not.

    2,048 answers: a share of 0.3 has a standard error of 0.010. The limits leave room
    for what training under other seeds changed.
    """
    model, world = start(name)[0], STARTS[name].world
    rows = world.held_out(2048, 1)
    prompts, answers = [r["prompt"] for r in rows], [r["answer"] for r in rows]
    texts = sample(model, TOKENIZER, prompts, seed=1).texts(TOKENIZER)
    rewards = world.reward(prompts, texts, answer=answers)
    habits = [world.habit(text) for text in texts]
    count, paid = Counter(habits), Counter()
    for kind, reward in zip(habits, rewards, strict=True):
        paid[kind] += reward
    for kind, share in zip(world.habits, world.habit_mix, strict=True):
        assert count[kind] / 2048 == pytest.approx(share, abs=0.08)
    if count["careful"] >= 200:  # fewer say little
        assert paid["careful"] / count["careful"] >= 0.85
    assert paid["guess"] / count["guess"] <= 0.25
    assert sum(rewards) / 2048 == pytest.approx(
        world.habit_mix[0] + 0.1 * world.habit_mix[1], abs=0.1
    )


def test_the_experts_are_all_in_use(start):
    """The load-balancing loss: no expert takes more than half of a layer's visits."""
    model = start("moe")[0]
    prompts = [row["prompt"] for row in Arithmetic().held_out(64, 1)]
    with moe.routed(model) as routing:
        rollout = sample(model, TOKENIZER, prompts, seed=1, routing=routing)
    for layer in range(2):
        visits = rollout.experts[:, :, layer]
        share = torch.bincount(visits[visits != moe.FREE].long(), minlength=8)
        share = share / share.sum()
        assert share.min() > 0.01 and share.max() < 0.5


def test_the_loss_of_a_mixture_of_experts_pays_for_imbalance():
    model = random_moe()
    ids = torch.tensor(TOKENIZER(["3+9=3+9=12;"])["input_ids"])
    with moe.routed(model) as routing:
        plain = model(ids, labels=ids).loss
    expected = plain + module.BALANCE * moe.load_balance(routing)
    assert module._loss(model, ids, ids, PAD).item() == pytest.approx(expected.item())
    assert module.BALANCE * moe.load_balance(routing) > 1e-3
