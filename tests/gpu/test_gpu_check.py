"""`gpu-check`: its parts on the CPU, with the tiny presets."""

import json
import math
from dataclasses import replace

import pytest
import torch

from experiments import bench
from experiments.command import main
from experiments.gpu import check, pairs
from refimpl import sample
from refimpl.pretrained.logprobs import log_probs
from tests import worlds
from tests.worlds import EOS, PAD, TOKENIZER, random_model

SMALL = replace(worlds.SMALL, max_new_tokens=8)


@pytest.fixture(scope="module")
def figures(tmp_path_factory) -> dict:
    """All of it but SmolLM2, which has a test of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "fetched", lambda _: False)
        out = tmp_path_factory.mktemp("gpu") / "figures.json"
        measured = check.gpu_check("cpu", out, tiny=True)
    assert json.loads(out.read_text()) == measured
    return measured


def test_two_ways_of_the_same_work_agree(figures):
    narrow = figures["bfloat16 against float32"]
    mean, largest = (narrow[f"{x} |Δ log-prob|, nats"] for x in ("mean", "largest"))
    assert 1e-6 < mean < largest < 0.05
    assert 1e-8 < narrow["1 − cosine of the gradients"] < 1e-2
    drawn = figures["sampler against generate"]
    assert drawn["sampled against teacher-forced, largest |Δ log-prob|, nats"] < 1e-5
    assert drawn["greedy tokens that are generate's, share"] == 1.0
    assert drawn["sampler, tokens/s"] > 0 and drawn["model.generate, tokens/s"] > 0
    shared = figures["update, prompts shared"]
    assert shared["largest |Δ log-prob|, nats"] < 1e-5
    ratio = shared["repeated prompts, seconds"] / shared["shared prompts, seconds"]
    assert shared["repeated prompts / shared prompts"] == pytest.approx(ratio, rel=2e-3)
    for same in (shared, figures["update against TRL"]):
        if "not measured" not in same:  # TRL may not be there
            assert same["|Δ loss|"] < 1e-6
            assert abs(same["1 − cosine of the gradients"]) < 1e-6
    assert "fetch smollm2" in figures["SmolLM2 with a LoRA"]["not measured"]


# What the comparisons would make of something wrong


def test_a_sampler_that_is_not_the_model_and_wrong_sharing_are_seen(monkeypatch):
    policy = random_model(), TOKENIZER

    def wrong(model, rollout, temperature=2.0, share_prompts=False):
        logp, entropy = log_probs(model, rollout, temperature, False)
        return logp.roll(1, 0) if share_prompts else logp, entropy

    def warm(*given, temperature=1.0, **settings):
        return sample(*given, temperature=max(1.0, temperature), **settings)

    monkeypatch.setattr(pairs, "log_probs", wrong)
    two = pairs.updates(*policy, SMALL, 1)
    assert two["largest |Δ log-prob|, nats"] > 1e-3
    assert two["1 − cosine of the gradients"] > 1e-3
    monkeypatch.setattr(pairs, "sample", warm)
    two = pairs.samplers(*policy, SMALL, 1)
    assert two["sampled against teacher-forced, largest |Δ log-prob|, nats"] > 1e-3
    assert two["greedy tokens that are generate's, share"] < 1.0


def test_generate_is_credited_with_the_tokens_through_the_first_end(monkeypatch):
    model, a = random_model(), 5
    rows = torch.tensor([[a, a, EOS, PAD], [EOS, PAD, PAD, PAD], [PAD, a, a, a]])
    given = model, TOKENIZER, 1, ["1+2=", "3+4=", "5+6="], 1, 4
    once = lambda works, repeats: ([work() for work in works], [1.0, 0.5])  # noqa: E731
    written = lambda input_ids, **_: torch.cat([input_ids, rows], 1)  # noqa: E731
    monkeypatch.setattr(bench, "_in_turn", once)
    monkeypatch.setattr(model, "generate", written)
    speed = bench.sampler(*given)
    assert speed["model.generate, tokens/s"] == (3 + 1 + 4) / 0.5
    rollout = sample(model, TOKENIZER, given[3], max_new_tokens=4)
    assert speed["sampler, tokens/s"] == rollout.mask.sum()
    assert speed["generate: share of products, attention, drawing"] == 0


# What goes wrong while measuring


def only(monkeypatch, **parts):
    monkeypatch.setattr(check, "parts", lambda here: parts)


def broken(*_):
    raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")


WORDS = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"


def test_a_part_that_raises_is_an_error_and_the_others_are_measured(
    monkeypatch, tmp_path, capsys
):
    parts = {f"gives {x}": lambda here, x=x: {"loss": x} for x in (math.nan, math.inf)}
    only(monkeypatch, one=broken, two=lambda here: {"seconds": 1.23456}, **parts)
    out = tmp_path / "figures.json"
    code = main(["gpu-check", "--device", "cpu", "--tiny", "--out", str(out)])
    measured = json.loads(out.read_text())
    assert (measured["one"], measured["two"]) == ({"error": WORDS}, {"seconds": 1.235})
    for x in ("nan", "inf"):
        assert measured[f"gives {x}"] == {"error": f"FloatingPointError: loss is {x}"}
    assert measured["machine"]["torch"] == torch.__version__
    assert code == 1
    printed = capsys.readouterr()
    assert WORDS in printed.out and "1.235" in printed.out
    assert printed.err.startswith("these could not be measured: one; gives nan;")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "torch sees no CUDA device on this machine"),
        (["--device", "cuda:0", "--tiny"], "torch sees no CUDA device"),
        (["--device", "cpu"], "on the CPU would say nothing about a GPU"),
        (["--device", "gpu", "--tiny"], "cannot use device 'gpu'"),
        (["--device", "cpu", "--tiny", "--out", "."], "the measurements"),
    ],
)
def test_without_a_gpu_it_says_so_and_measures_nothing(
    given, words, monkeypatch, tmp_path, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    only(monkeypatch, one=broken)
    assert main(["gpu-check", *given]) == 2
    printed = capsys.readouterr()
    assert words in printed.err and printed.err.count("\n") == 1
    assert printed.out == "" and not list(tmp_path.iterdir())
