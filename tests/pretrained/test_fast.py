"""The decode step written out says what transformers' does, row by row."""

from copy import deepcopy

import pytest
import torch

from refimpl import sampling
from refimpl.pretrained import fast
from refimpl.pretrained.fast import Direct, common
from refimpl.sampling import Decoder
from tests.rollout.families import SUPPORTED, build
from tests.rollout.test_rollout import drawn
from tests.worlds import (
    gpt2,
    llama,
    own_process,
    random_model,
    random_moe,
    warm_model,
    with_lora,
)

OURS = {name: lambda name=name: build(*SUPPORTED[name]) for name in SUPPORTED}
OURS = {name: OURS[name] for name in ("Llama", "Qwen2", "Qwen3")}
OURS |= {
    "a LoRA": lambda: with_lora(random_model(), r=2),
    "the toy": lambda: deepcopy(warm_model()),
}


@pytest.mark.parametrize("name", OURS)
def test_ours_and_theirs_draw_the_same(name, monkeypatch):
    """Norms are float32 in both, so that log-probs are."""
    model = OURS[name]().double()
    assert fast.reader(model) is Direct
    for seed in range(2):
        ours, theirs = (
            drawn(model, kind, monkeypatch, seed=seed) for kind in (Direct, Decoder)
        )
        assert torch.equal(ours.ids, theirs.ids) and len({*ours.length.tolist()}) > 5
        assert (ours.logp - theirs.logp).abs().max() < 1e-6
    monkeypatch.setattr(fast, "WORTH", 99)
    whole = drawn(model, Direct, monkeypatch, seed=seed)
    assert torch.equal(ours.ids, whole.ids)
    assert (ours.logp - whole.logp).abs().max() < 1e-6


def test_it_reads_what_it_knows_once_it_is_used(monkeypatch):
    monkeypatch.setattr(sampling, "decoder_factories", [])
    monkeypatch.setattr(fast, "decoder_factories", sampling.decoder_factories)
    assert sampling.decoder(random_model()) is Decoder
    fast.use()
    fast.use()
    assert [fast.reader] == sampling.decoder_factories
    assert sampling.decoder(random_model()) is Direct
    (eager := llama()).set_attn_implementation("eager")
    (turned := llama()).config.rope_parameters["rope_type"] = "dynamic"
    windowed = build(*SUPPORTED["Mistral"])
    for other in (gpt2(), random_moe(), windowed, eager, turned):
        assert sampling.decoder(other) is Decoder


OPENED = """
import sys
from refimpl import sampling

sys.path.insert(0, "notebooks")
from experiments import bench, evidence, real
from refimpl.pretrained import fast

assert sampling.decoder_factories == []
import course

assert sampling.decoder_factories == [fast.reader]
"""


@pytest.mark.ci
def test_the_chapters_use_it_and_stored_evidence_does_not():
    done = own_process(OPENED)
    assert done.returncode == 0, done.stderr


def test_what_all_prompts_begin_with_is_read_once(monkeypatch):
    model, read = random_model(), []
    model.register_forward_pre_hook(lambda _, ids: read.append(tuple(ids[0].shape)))
    drawn(model, Direct, monkeypatch)
    assert read == [(1, 8), (3, 5)]
    assert common([[1] * 9]) == common([[1] * 8] * 3) == []
    assert common([[1] * 9, [1] * 12]) == [1] * 8
