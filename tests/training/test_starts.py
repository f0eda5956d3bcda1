"""The warm start: shipped or cached by its settings, all or nothing; what it can do."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace

import pandas
import pytest
import torch
import transformers
from filelock import FileLock

from refimpl import UserError, WarmStart, sample, sft, warm_start
from refimpl.moe import load_balance, routed
from refimpl.sft import cached, digest, shipped, weights_digest
from refimpl.tasks import Arithmetic, HabitWorld, rare_careful
from tests.tools.make_starts import STARTS
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
    done, train = [], sft.train

    def spy(settings, *device):
        done.append(settings)
        return train(settings, *device)

    monkeypatch.setattr(sft, "train", spy)
    return done


def kept(cache) -> list[str]:
    """What lies in a cache, locks apart."""
    return [path.name for path in cache.iterdir() if path.suffix != ".lock"]


def test_a_policy_is_trained_once_and_anew_if_asked_and_is_the_same(cache, trainings):
    """It depends on its seed alone, whatever the global generator gives."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert weights_digest(QUICK) == ""
    model, tokenizer, losses = warm_start(QUICK)
    assert torch.equal(torch.get_rng_state(), before)
    assert weights_digest(QUICK) == digest(cached(QUICK) / "model.safetensors")
    again, other, again_losses = warm_start(QUICK)
    assert trainings == [QUICK] and len(losses) == 4 + 3
    torch.manual_seed(2)
    anew, _, anew_losses = warm_start(QUICK, fresh=True)
    assert trainings == [QUICK, QUICK] and kept(cache) == [cached(QUICK).name]
    assert same_weights(again, model) and same_weights(anew, model)
    assert again_losses == losses == anew_losses
    assert other("3+9=;#?")["input_ids"] == tokenizer("3+9=;#?")["input_ids"]
    assert not (model.training or again.training)
    assert len(warm_start(replace(QUICK, skill_steps=10, habit_steps=10))[2]) == 20
    for changed in ({"seed": 1}, {"skill_mix": (0.0, 0.0, 1.0)}):
        assert not same_weights(warm_start(replace(QUICK, **changed))[0], model)


OTHER = {"preset": "small", "world": rare_careful(), "skill_mix": (0.8, 0.1, 0.1)}
OTHER["name"] = "with another habit"


def test_every_setting_and_the_recipe_name_the_folder(cache, monkeypatch):
    settings = [QUICK, replace(QUICK, world=Arithmetic(max_terms=4))]
    for field in fields(WarmStart):
        value = OTHER.get(field.name)
        value = getattr(QUICK, field.name) * 2 + 1 if value is None else value
        settings.append(replace(QUICK, **{field.name: value}))
    folders = {cached(setting) for setting in settings}
    assert {folder.parent for folder in folders} == {cache}
    assert cached(WarmStart(**vars(QUICK))) in folders
    monkeypatch.setattr(sft, "RECIPE", sft.RECIPE + 1)
    folders.add(cached(QUICK))
    monkeypatch.setenv("REFIMPL_SALT", "1")
    folders.add(cached(QUICK))
    assert len(folders) == len(settings) + 2


def test_three_that_need_the_same_policy_train_it_once(cache, trainings):
    """And others need not wait. Threads stand for processes: the locks are on files."""
    with ThreadPoolExecutor(3) as pool:
        models = [start[0] for start in pool.map(warm_start, [QUICK] * 3, timeout=120)]
        assert trainings == [QUICK] and kept(cache) == [cached(QUICK).name]
        assert all(same_weights(models[0], model) for model in models)
        with FileLock(f"{cached(QUICK)}.lock"):
            pool.submit(warm_start, replace(QUICK, seed=1)).result(timeout=120)
    assert len(trainings) == 2


def test_a_world_names_every_letter_that_it_writes(cache, trainings):
    """Else the policy would learn to write an unknown token."""

    class Loud(Arithmetic):
        @staticmethod
        def guess(prompt, rng):
            return "#12!"

    with pytest.raises(UserError, match="writes '!', but its characters are '0123"):
        warm_start(replace(QUICK, world=Loud()))
    with pytest.raises(UserError, match="world must be a dataclass"):
        WarmStart(world=type("Mine", (HabitWorld,), {})())
    Loud.characters += "!"
    assert len(warm_start(replace(QUICK, world=Loud()))[1]) == len(TOKENIZER) + 1


def test_the_loss_falls_on_the_response_and_its_end_alone():
    rows = Arithmetic().demonstrations(10, 0)
    batches = list(sft._batches(rows, TOKENIZER, 4))
    assert [len(ids) for ids, _ in batches] == [4, 4, 2]
    pairs = [pair for ids, labels in batches for pair in zip(ids, labels, strict=True)]
    for row, (ids, labels) in zip(rows, pairs, strict=True):
        prompt = TOKENIZER(row["prompt"])["input_ids"]
        response = [*TOKENIZER(row["completion"])["input_ids"], TOKENIZER.eos_token_id]
        padding = len(ids) - len(prompt) - len(response)
        assert ids.tolist() == prompt + response + [TOKENIZER.pad_token_id] * padding
        assert labels.tolist() == [-100] * len(prompt) + response + [-100] * padding


def test_the_loss_of_a_mixture_of_experts_pays_for_imbalance():
    """Where there is no padding."""
    model = random_moe()
    ids = torch.tensor(TOKENIZER(["3+9=3+9=12;"])["input_ids"])
    padded = torch.nn.functional.pad(ids, (0, 3), value=PAD)
    with routed(model) as routing:
        plain = model(ids, labels=ids).loss
    balance = sft.BALANCE * load_balance(routing)
    labels = padded.masked_fill(padded == PAD, -100)
    for given in ((ids, ids), (padded, labels)):
        found = sft._loss(model, *given, TOKENIZER).item()
        assert found == pytest.approx((plain + balance).item(), abs=1e-6)
    assert balance > 1e-3


def test_the_policies_of_the_chapters_are_read_without_a_cache(cache, trainings):
    for name, settings in STARTS.items():
        model, tokenizer, losses = warm_start(settings)
        assert len(losses) == settings.skill_steps + settings.habit_steps
        assert len(tokenizer) == model.config.vocab_size and not model.training
        assert shipped(settings).name == name
        weights = shipped(settings) / "model.safetensors"
        assert weights_digest(settings) == digest(weights)
    assert not trainings and not cache.exists()
    assert shipped(replace(WarmStart(), seed=1)) is None
    assert shipped(WarmStart(world=Arithmetic(max_terms=4))) is None


BROKEN = [{"model_type": "qwen99"}, {"num_hidden_layers": 3}, {}]


@pytest.mark.parametrize("changed", BROKEN, ids=str)
def test_a_shipped_policy_that_cannot_be_read_is_named(changed, tmp_path, monkeypatch):
    """As a future version of transformers might not read our files."""
    copied = shutil.copytree(sft.SHIPPED, tmp_path / "starts")
    monkeypatch.setattr(sft, "SHIPPED", copied)
    path, weights = (copied / "dense" / n for n in ("config.json", "model.safetensors"))
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    weights.write_bytes(weights.read_bytes()[: None if changed else -1])
    words = rf"/dense is damaged, or transformers {transformers.__version__} does not"
    with pytest.raises(UserError, match=rf"{words} .*REFIMPL_OWN_STARTS=1"):
        warm_start()


@pytest.mark.parametrize("name", [n for n in STARTS if n != "calculator"])
def test_the_policy_can_add_but_seldom_does(name):
    """Room for RL: the skill is there, the habit is not. (Notebook 00 trains the dense
    policy anew and asks the same of what this machine made. The one that calls a
    calculator is asked in `tests/rollout/test_calculator.py`.)

    512 answers: a share of 0.3 has a standard error of 0.02. The limits leave room for
    what training under other seeds changed.
    """
    settings, world = STARTS[name], STARTS[name].world
    model, _, losses = warm_start(settings)
    assert losses[0] > 2.5  # near ln 18: nothing known
    end = losses[settings.skill_steps - 50 : settings.skill_steps]
    assert sum(end) / 50 < 0.5
    rows = world.held_out(512, 1)
    prompts, answers = [r["prompt"] for r in rows], [r["answer"] for r in rows]
    texts = sample(model, TOKENIZER, prompts, seed=1).texts(TOKENIZER)
    found = pandas.DataFrame({"habit": map(world.habit, texts)})
    found["reward"] = world.reward(prompts, texts, answer=answers)
    by_habit = found.groupby("habit")["reward"].agg(["size", "mean"])
    for kind, share in zip(world.habits, world.habit_mix, strict=True):
        assert (found.habit == kind).mean() == pytest.approx(share, abs=0.08)
    if by_habit["size"]["careful"] >= 100:  # fewer say little
        assert by_habit["mean"]["careful"] >= 0.85
    assert by_habit["mean"]["guess"] <= 0.25
    right = world.habit_mix[0] + 0.1 * world.habit_mix[1]
    assert found.reward.mean() == pytest.approx(right, abs=0.1)
