"""The warm start: cached by its settings, all or nothing, and what it can do."""

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from worlds import PAD, TOKENIZER, random_moe, same_weights, warm_model

from refimpl import moe
from refimpl import warm_start as module
from refimpl.rollout import sample
from refimpl.tasks import Arithmetic, rare_careful
from refimpl.trainer import evaluate
from refimpl.warm_start import WarmStart, cache_folder, warm_start

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
    assert [path.name for path in cache.iterdir()] == [QUICK.folder().name]


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
    assert list(cache.iterdir()) == []
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


def test_the_two_stages_show_the_mixes_that_were_asked_for(cache, monkeypatch):
    shown = []
    demonstrations = Arithmetic.demonstrations

    def spy(self, n, seed, mix=None):
        shown.append((n, mix))
        return demonstrations(self, n, seed, mix)

    monkeypatch.setattr(Arithmetic, "demonstrations", spy)
    warm_start(replace(QUICK, world=rare_careful()))
    assert shown == [(16, QUICK.skill_mix), (12, rare_careful().habit_mix)]


# What was learned


def test_the_loss_of_the_default_warm_start_fell():
    losses = warm_start()[2]
    settings = WarmStart()
    assert len(losses) == settings.skill_steps + settings.habit_steps
    assert losses[0] > 2.5  # near ln 18: nothing known
    end = losses[settings.skill_steps - 50 : settings.skill_steps]
    assert sum(end) / 50 < 0.5


@pytest.mark.parametrize("preset", ["tiny", "tiny-moe"])
def test_the_default_policy_can_add_but_seldom_does(preset):
    """Room for RL: the skill is there, the habit is not."""
    world, model = Arithmetic(), warm_start(WarmStart(preset=preset))[0]
    rows = world.held_out(512, 1)
    prompts, answers = [r["prompt"] for r in rows], [r["answer"] for r in rows]
    texts = sample(model, TOKENIZER, prompts, seed=1).texts(TOKENIZER)
    rewards = world.reward(prompts, texts, answer=answers)
    assert 0.25 <= sum(rewards) / 512 <= 0.45
    habits = [world.habit(text) for text in texts]
    paid = Counter()
    for kind, reward in zip(habits, rewards, strict=True):
        paid[kind] += reward
    count = Counter(habits)
    assert paid["careful"] / count["careful"] >= 0.9
    assert paid["guess"] / count["guess"] <= 0.25
    for kind, share in zip(world.habits, world.habit_mix, strict=True):
        assert abs(count[kind] / 512 - share) < 0.08


def test_the_experts_of_the_warm_start_are_all_in_use():
    """The load-balancing loss: no expert takes more than half of a layer's visits."""
    model = warm_start(WarmStart(preset="tiny-moe"))[0]
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


def test_evaluate_gives_the_accuracy_of_the_default_policy():
    assert 0.25 <= evaluate(warm_model(), TOKENIZER, problems=512) <= 0.45
