"""`gpu-check`: its parts on the CPU, with the tiny presets."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from refimpl import ALGORITHMS, History, sample
from refimpl.__main__ import main
from refimpl.lab import bench, gpu_check, pairs
from refimpl.real.scoring import log_probs
from refimpl.run import Run
from tests import worlds
from tests.worlds import EOS, PAD, TOKENIZER, random_model, warm_model

SMALL = replace(worlds.SMALL, max_new_tokens=8)
HERE = gpu_check.Here(SMALL)


@pytest.fixture(scope="module")
def figures(tmp_path_factory) -> dict:
    """All of it but SmolLM2, which has a test of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_check, "fetched", lambda _: False)
        out = tmp_path_factory.mktemp("gpu") / "figures.json"
        measured = gpu_check.gpu_check("cpu", out, tiny=True)
    assert json.loads(out.read_text()) == measured
    return measured


def test_every_algorithm_trains_where_it_can(figures):
    """RSPO needs routers."""
    runs = {name: x for name, x in figures.items() if name.split(",")[0] in ALGORITHMS}
    expected = {f"{name}, {x}" for name in ALGORITHMS for x in ("tiny", "tiny-moe")}
    assert runs.keys() == expected - {"rspo, tiny"}
    for name, run in runs.items():
        assert "error" not in run, (name, run)
        assert run["largest |ratio − 1|"] > 1e-3, name
        assert run["last rollout with its updates, seconds"] > 0, name


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


def test_what_the_guide_tells_one_to_run_on_a_gpu_is_tried(figures):
    for name in ("bfloat16: grpo", "bfloat16: rspo"):
        assert figures[name]["largest |ratio − 1|"] > 1e-2, name
    warm = figures["warm start"]
    assert 0 < warm["last loss, nats"] < warm["first loss, nats"]
    few, many = (figures["rows of a rollout"][f"{n} rows, tokens/s"] for n in (16, 128))
    assert 0 < few < many and warm["seconds per step"] > 0


def test_runs_that_one_seed_does_not_decide_are_seen(figures, monkeypatch):
    """On a CPU it does, and a run that was cut in two is the same."""
    same = {f"{name}, same history": True for name in ("same seed", "resumed")}
    same |= {f"{name}, largest |Δ weight|": 0.0 for name in ("same seed", "resumed")}
    assert figures["same seed and resumed"] == same
    dice = torch.Generator().manual_seed(0)

    def moody(completions, **_):
        return torch.rand(len(completions), generator=dice).tolist()

    monkeypatch.setattr(pairs, "odd_characters", moody)
    config = replace(SMALL, rollouts=2)
    other = gpu_check.repeated(gpu_check.Here(config, "tiny"))
    assert not other["same seed, same history"] and not other["resumed, same history"]
    for name in ("same seed", "resumed"):
        assert other[f"{name}, largest |Δ weight|"] > 1e-6


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


def test_precisions_are_compared_on_response_tokens_alone(monkeypatch):
    """A bfloat16 that gives every token 0.1 nats less; padding has none to give."""
    read, seen = Run.read, []

    def lower(run, model, rollout):
        seen.append(rollout.mask)
        logp, entropy = read(run, model, rollout)
        return logp - 0.1 * (run.config.dtype == "bfloat16") * rollout.mask, entropy

    monkeypatch.setattr(Run, "read", lower)
    monkeypatch.setattr("refimpl.run.precision", lambda *_: torch.enable_grad())
    gap = pairs.precisions(warm_model(), TOKENIZER, SMALL)
    assert 0.1 < seen[-1].mean() < 0.99
    for name in ("mean", "largest"):
        assert gap[f"{name} |Δ log-prob|, nats"] == pytest.approx(0.1, rel=1e-4)


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


# What goes wrong while measuring


def only(monkeypatch, **parts):
    monkeypatch.setattr(gpu_check, "parts", lambda here: parts)


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


def test_a_device_that_no_longer_answers_takes_no_figure_back(monkeypatch, tmp_path):
    """After an assertion in a kernel every call raises, `empty_cache` too."""
    monkeypatch.setattr(torch.cuda, "empty_cache", broken)
    cuda = gpu_check.Here(SimpleNamespace(device="cuda"))
    assert gpu_check._measured(lambda here: {}, cuda) == {"error": WORDS}
    out = tmp_path / "figures.json"

    def killed(here):
        assert json.loads(out.read_text())["one"] == {"seconds": 1.0}
        raise KeyboardInterrupt

    only(monkeypatch, one=lambda here: {"seconds": 1.0}, two=killed)
    with pytest.raises(KeyboardInterrupt):
        gpu_check.gpu_check("cpu", out, tiny=True)
    assert json.loads(out.read_text())["one"] == {"seconds": 1.0}


def test_a_run_is_its_last_loss_and_its_largest_ratio_or_what_ended_it(monkeypatch):
    names = "loss", "ratio/max_deviation", "step_time"
    rows = [dict(zip(names, row)) for row in ((0.5, 0.2, 9.0), (0.25, 0.1, 3.0))]
    history, part = History("grpo", rows), gpu_check.parts(HERE)["grpo, small"]
    monkeypatch.setattr(gpu_check, "train", lambda *_, **__: history)
    assert list(part(HERE).values()) == [0.25, 0.2, 3.0]
    history.ended = FloatingPointError("stopped after 2 rollouts")
    measured = gpu_check._measured(part, HERE)
    assert measured == {"error": "FloatingPointError: stopped after 2 rollouts"}


def test_no_part_begins_when_the_time_is_over(monkeypatch, tmp_path):
    only(monkeypatch, one=broken)
    monkeypatch.setattr(gpu_check, "LIMIT", -1.0)
    measured = gpu_check.gpu_check("cpu", tmp_path / "figures.json", tiny=True)
    assert measured["one"] == {"not measured": "-1 seconds were over"}


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
