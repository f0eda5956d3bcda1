"""Dice: the salt reaches every draw, and without one nothing changes."""

import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from refimpl import dice
from refimpl.models import build, make_critic
from refimpl.rollout import sample
from refimpl.tasks import Arithmetic
from refimpl.trainer import collect, evaluate, prepare
from refimpl.update import _one_update, update
from tests.worlds import (
    SMALL,
    TOKENIZER,
    random_model,
    random_moe,
    small_run,
    warm_model,
)

WORLD = Arithmetic()


def prompts(rows) -> str:
    return " ".join(row["prompt"] for row in rows)


def numbers(model) -> str:
    return str([p.flatten()[:3].tolist() for p in model.parameters()])


def shuffled() -> str:
    """The order of the mini-batches alone: the rollout is made without a salt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFIMPL_SALT", "0")
        config = replace(SMALL, prompts_per_rollout=8, minibatches=4)
        run = prepare("grpo", config, warm_model(), TOKENIZER)
        batch, _ = collect(run, 0)
    dealt = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "refimpl.update._one_update",
            lambda run, batch, chosen, *rest: (
                dealt.append(chosen.tolist()) or _one_update(run, batch, chosen, *rest)
            ),
        )
        update(run, batch, 0)
    return str(dealt)


def router_noise() -> str:
    """The sampler's noise alone: problems and tokens are drawn without a salt."""
    its = dice.seed_for(SMALL.seed, 0, "router")

    def noise_only(seed, device="cpu"):
        number = dice.salted(seed) if seed == its else seed
        return torch.Generator(device).manual_seed(number)

    config = replace(SMALL, router_noise=2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dice, "generator", noise_only)
        patch.setattr("refimpl.tasks.world.salted", lambda seed: seed)
        run = prepare("grpo", config, random_moe(), TOKENIZER)
        batch, _ = collect(run, 0)
    return str(batch.rollout.ids.tolist())


DRAWS = {
    "problems": lambda: prompts(WORLD.sample(16, 0)),
    "held-out problems": lambda: prompts(WORLD.held_out(16)),
    "demonstrations": lambda: str(WORLD.demonstrations(16, 0)),
    "initial weights": lambda: numbers(build("tiny", TOKENIZER)),
    "sampled tokens": lambda: str(
        sample(random_model(), TOKENIZER, ["3+9="], group_size=4).ids.tolist()
    ),
    "mini-batches": shuffled,
    "router noise": router_noise,
    "evaluation": lambda: str(evaluate(warm_model(), TOKENIZER, problems=200)),
    "a generator": lambda: str(torch.rand(3, generator=dice.generator(0)).tolist()),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_salt_reaches_every_draw(draw, monkeypatch):
    found = {}
    for salt in ("", "0", "1", "1 ", "2"):
        monkeypatch.setenv("REFIMPL_SALT", salt)
        # A model that stays the same, or the draw would differ through its weights.
        monkeypatch.setattr("refimpl.models.salted", no_salt_for(draw))
        found[salt] = draw()
    assert found[""] == found["0"] and found["1"] == found["1 "]
    assert len(set(found.values())) == 3


def no_salt_for(draw):
    own = draw is DRAWS["initial weights"]
    return dice.salted if own else lambda seed: seed


def test_the_critic_is_salted(monkeypatch):
    seeds = []
    monkeypatch.setattr(
        "refimpl.models.salted", lambda seed: seeds.append(seed) or dice.salted(seed)
    )
    make_critic(warm_model(), 7)
    assert seeds == [7]


def test_the_same_salt_gives_the_same_history_and_another_one_another(monkeypatch):
    found = {}
    for salt in ("0", "1", "1", "2"):
        monkeypatch.setenv("REFIMPL_SALT", salt)
        found.setdefault(salt, []).append(small_run(eval_problems=32))
    assert found["1"][0] == found["1"][1]
    assert found["0"] != found["1"][:1] != found["2"]


def test_without_a_salt_seeds_are_what_they_always_were(monkeypatch):
    monkeypatch.delenv("REFIMPL_SALT", raising=False)
    assert [dice.salted(seed) for seed in (0, 7, 2**60)] == [0, 7, 2**60]
    assert dice.seed_for(0, 0, "q") == 7096954762923715842  # on every machine
    rows = WORLD._draw(4, random.Random("train 5"), held_out=False)
    assert WORLD.sample(4, 5) == rows


def test_a_salted_seed_is_the_same_on_every_machine(monkeypatch):
    monkeypatch.setenv("REFIMPL_SALT", "3")
    assert dice.salted(0) == 8362064564768703398
    many = {dice.salted(seed) for seed in range(1000)}
    assert len(many) == 1000 and all(0 <= seed < 2**63 for seed in many)


@pytest.mark.parametrize("text", ["-1", "1.5", "abc", "1e3", "٣", "0x1"])
def test_a_salt_that_is_no_whole_number_is_refused(text, monkeypatch):
    monkeypatch.setenv("REFIMPL_SALT", text)
    with pytest.raises(ValueError, match="REFIMPL_SALT must be a whole number ≥ 0"):
        dice.salt()


def test_the_command_says_so_before_it_works():
    done = subprocess.run(
        [sys.executable, "-m", "refimpl", "train", "--algorithm", "grpo"],
        env={**os.environ, "REFIMPL_SALT": "seven"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: REFIMPL_SALT must be a whole number ≥ 0")
    assert "rollout" not in done.stdout
