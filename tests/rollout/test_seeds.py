"""Seeds: the salt reaches every draw, and without one nothing changes."""

import random
from itertools import product

import pytest

from refimpl import collect, sample, seeds, updates
from refimpl.evaluation import scores
from refimpl.models import build
from refimpl.sampling import Sampler, Sampling
from refimpl.tasks import Arithmetic, Rows
from tests.worlds import (
    TOKENIZER,
    always_one,
    fixed_noise,
    prepared,
    random_model,
    random_moe,
    warm_model,
)

WORLD = Arithmetic()
ROWS = Rows([{"prompt": f"{n}"} for n in range(99)], always_one)


def prompts(rows) -> str:
    return " ".join(row["prompt"] for row in rows)


def weights(model) -> str:
    return str([p.flatten()[:3].tolist() for p in model.parameters()])


def shuffled() -> str:
    """By the order of the mini-batches alone: the rollout is made without a salt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFIMPL_SALT", "0")
        shape = {"prompts_per_rollout": 8, "group_size": 2, "minibatches": 4}
        run = prepared(reward=fixed_noise, max_new_tokens=4, **shape)
        batch, _ = collect(run, 0)
    updates(run, batch, 0)
    return weights(run.model)


def router_noise() -> str:
    """In the prompt, which is read before a token is drawn."""
    sampler = Sampler(random_moe(), noise=2.0, records=True)
    limit = Sampling(max_new_tokens=1)
    rollout = sampler.respond(TOKENIZER, ["3+9="], limit, 0, 1)
    return str(rollout.router_logp.tolist())


DRAWS = {
    "problems": lambda: prompts(WORLD.sample(16, 0)),
    "held-out problems": lambda: prompts(WORLD.held_out(16)),
    "rows": lambda: prompts(ROWS.sample(16, 0)),
    "held-out rows": lambda: prompts(ROWS.held_out(16)),
    "demonstrations": lambda: str(WORLD.demonstrations(16, 0)),
    "initial weights": lambda: weights(build("tiny", TOKENIZER)),
    "sampled tokens": lambda: str(
        sample(random_model(), TOKENIZER, ["3+9="], group_size=4).ids.tolist()
    ),
    "mini-batches": shuffled,
    "router noise": router_noise,
    "evaluation": lambda: str(scores(warm_model(), TOKENIZER, problems=40).tolist()),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_salt_reaches_every_draw(draw, monkeypatch):
    drawn = {}
    if draw is not DRAWS["initial weights"]:
        # A model that stays the same, or the draw would differ through its weights.
        monkeypatch.setattr("refimpl.models.salted", lambda seed: seed)
    for salt in ("", "1", "2"):
        monkeypatch.setenv("REFIMPL_SALT", salt)
        drawn[salt] = draw()
    assert len(set(drawn.values())) == 3


def test_seeds_are_the_same_on_every_machine(monkeypatch):
    """And without a salt what they always were."""
    assert [seeds.salted(seed) for seed in (0, 7, 2**63 + 5)] == [0, 7, 5]
    assert seeds.seed_for(0, 0, "q") == 7096954762923715842
    each = range(12), range(12), ("q", "sample", "shuffle")
    every = {seeds.seed_for(*one) for one in product(*each)}
    assert len(every) == 12 * 12 * 3 and all(0 <= seed < 2**63 for seed in every)
    rows = WORLD._draw(4, random.Random("train 5"), held_out=False)
    assert WORLD.sample(4, 5) == rows
    monkeypatch.setenv("REFIMPL_SALT", "0")
    assert seeds.salted(7) == 7
    for three in ("3 ", "3"):
        monkeypatch.setenv("REFIMPL_SALT", three)
        assert seeds.salted(0) == 8362064564768703398
    many = {seeds.salted(seed) for seed in range(1000)}
    assert len(many) == 1000 and all(0 <= seed < 2**63 for seed in many)
