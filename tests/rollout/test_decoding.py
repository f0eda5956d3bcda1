"""The sampler's own forward pass says what transformers' does, row by row."""

import re
from functools import partial

import pytest
import torch

from refimpl import decoding, log_probs, sample, sampling
from refimpl.decoding import Decoder
from refimpl.engine import Captured, Direct, direct
from tests.device.graphs import CUDA, Graph
from tests.rollout.families import SUPPORTED, build
from tests.worlds import TOKENIZER, gpt2, own_process, random_model, with_lora

PROMPTS = ["1+2+3+4+5=", "1+2+3+4+=", "1+2+3+4+67+8="]  # eight alike, then not
OURS = ["Llama", "Qwen2", "Qwen3", "Qwen3-MoE", "a LoRA"]


def drawn(model, reader: type[Decoder], monkeypatch, **settings):
    """Forty responses, hot, so that rows leave at different times."""
    monkeypatch.setattr(sampling, "decoder", lambda _: reader)
    settings = {"group_size": 40, "temperature": 3.0, "max_new_tokens": 24} | settings
    return sample(model, TOKENIZER, PROMPTS, **settings)


@pytest.mark.parametrize("name", OURS)
def test_ours_and_theirs_draw_the_same(name, monkeypatch):
    if name == "a LoRA":
        model = with_lora(random_model(), r=2)
    else:
        model = build(*SUPPORTED[name])
    exact = 1e-5 if name == "Qwen3-MoE" else 1e-6  # norms are float32, experts too
    model = model if name == "Qwen3-MoE" else model.double()
    assert decoding.decoder(model) is Direct and decoding.decoder(gpt2()) is Decoder
    ours, theirs = (drawn(model, kind, monkeypatch) for kind in (Direct, Decoder))
    assert torch.equal(ours.ids, theirs.ids) and len(set(ours.length.tolist())) > 5
    assert (ours.logp - theirs.logp).abs().max() < exact
    monkeypatch.setattr(direct, "WORTH", 99)
    whole = drawn(model, Direct, monkeypatch)
    assert torch.equal(ours.ids, whole.ids)
    assert (ours.logp - whole.logp).abs().max() < exact


def test_what_all_prompts_begin_with_is_read_once(monkeypatch):
    read = []

    class Watched(Direct):
        def forward(self, ids, rows):
            read.append(tuple(ids.shape))
            return super().forward(ids, rows)

    drawn(random_model(), Watched, monkeypatch)
    assert read == [(1, 8), (3, 5)]
    common = partial(Direct.common, None)
    assert common([[1] * 9]) == common([[1] * 8] * 3) == 0
    assert common([[1] * 9, [1] * 12]) == 8


@pytest.mark.parametrize("kind", [Direct, Decoder])
def test_a_row_that_is_mixed_up_is_noticed(kind, monkeypatch):
    class Mixed(kind):
        def keep(self, rows):
            super().keep(rows.flip(0))

    model = random_model()
    rollout = drawn(model, Mixed, monkeypatch)
    assert (log_probs(model, rollout, 3.0)[0] - rollout.logp).abs().max() > 0.01


def test_a_graph_draws_what_single_steps_do(monkeypatch):
    """Asked every eight tokens who has ended; until half are gone, all rows stay."""
    for name, value in CUDA.items():
        monkeypatch.setattr(torch.cuda, name, value)
    made = Graph.made

    class Plain(Direct):
        crowd, look = Captured.crowd, property(lambda _: 8, lambda *_: None)

    class OnCpu(Captured):
        look = Plain.look

    model = random_model().double()
    single, rollout = (drawn(model, kind, monkeypatch) for kind in (Plain, OnCpu))
    assert 1 < Graph.made - made < 4
    logp, entropy = log_probs(model, rollout, 3.0)
    assert (logp - rollout.logp).abs().max() < 1e-6
    assert (entropy - rollout.entropy).abs().max() < 1e-6
    assert torch.equal(rollout.ids, single.ids)
    assert (rollout.mask.diff() <= 0).all() and rollout.truncated.any()


CALLS = """
import warnings
from refimpl.real import scoring
from tests import worlds

warnings.simplefilter("always")
for name, model in (("ppo", worlds.gpt2()), ("rspo", worlds.random_moe())):
    worlds.small_run(name, model=model, reward=worlds.fixed_noise, rollouts=1)
given = {"log_probs": scoring.log_probs, "model": worlds.llama(), "rollouts": 1}
worlds.small_run("grpo", reward=worlds.fixed_noise, **given)
"""


def test_nothing_that_is_called_here_is_deprecated():
    """Whichever version of transformers is installed, it warns of none of our calls."""
    done = own_process(CALLS)
    assert done.returncode == 0, done.stderr
    old = re.compile(r"deprecat|will be removed|renamed", re.IGNORECASE)
    assert [line for line in done.stderr.splitlines() if old.search(line)] == []
