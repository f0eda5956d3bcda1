"""`gpu-check`: its parts on the CPU, with the tiny presets."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from refimpl.__main__ import main
from refimpl.algorithms import ALGORITHMS
from refimpl.config import TrainConfig
from refimpl.history import History
from refimpl.lab import bench, gpu_check, pairs
from refimpl.models import build
from refimpl.real.pretrained import fetched
from refimpl.rollout import sample
from refimpl.scoring import log_probs
from refimpl.tasks import make_tokenizer

SMALL = TrainConfig(
    prompts_per_rollout=4, group_size=4, max_new_tokens=8, minibatches=2
)
TRL = "update against TRL"


@pytest.fixture(scope="module")
def policy():
    tokenizer = make_tokenizer()
    return build("tiny", tokenizer), tokenizer


@pytest.fixture(scope="module")
def figures(tmp_path_factory) -> dict:
    """All of it but SmolLM2, which has a test of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_check, "fetched", lambda _: False)
        out = tmp_path_factory.mktemp("gpu") / "figures.json"
        found = gpu_check.gpu_check("cpu", out, tiny=True)
    assert json.loads(out.read_text()) == found
    return found


def test_every_algorithm_trains_on_both_presets_and_rspo_where_there_are_routers(
    figures,
):
    runs = {name: x for name, x in figures.items() if name.split(",")[0] in ALGORITHMS}
    expected = {f"{name}, tiny-moe" for name in ALGORITHMS}
    expected |= {f"{name}, tiny" for name in ALGORITHMS if name != "rspo"}
    assert set(runs) == expected
    for name, found in runs.items():
        assert "error" not in found, (name, found)
        assert math.isfinite(found["loss, last rollout"]), name
        assert found["largest |ratio − 1|"] > 1e-3, name
        assert found["last rollout with its updates, seconds"] > 0, name


def test_bfloat16_is_near_float32_and_not_the_same(figures):
    found = figures["bfloat16 against float32"]
    mean, largest = (found[f"{x} |Δ log-prob|, nats"] for x in ("mean", "largest"))
    assert 1e-6 < mean < largest < 0.05
    assert 1e-8 < found["1 − cosine of the gradients"] < 1e-2


def test_the_sampler_draws_what_the_model_says(figures):
    found = figures["sampler against generate"]
    assert found["sampled against teacher-forced, largest |Δ log-prob|, nats"] < 1e-5
    assert found["greedy tokens that are generate's, share"] == 1.0
    assert found["sampler, tokens/s"] > 0 and found["model.generate, tokens/s"] > 0


def test_shared_prompts_are_repeated_ones(figures):
    found = figures["update, prompts shared"]
    assert found["largest |Δ log-prob|, nats"] < 1e-5
    assert found["|Δ loss|"] < 1e-6
    assert abs(found["1 − cosine of the gradients"]) < 1e-6
    ratio = found["repeated prompts, seconds"] / found["shared prompts, seconds"]
    assert found["repeated prompts / shared prompts"] == pytest.approx(ratio, rel=2e-3)


def test_trl_computes_the_same_where_it_is_installed(figures):
    found = figures[TRL]
    if "not measured" not in found:
        assert found["|Δ loss|"] < 1e-6
        assert abs(found["1 − cosine of the gradients"]) < 1e-6


def test_what_is_missing_is_said(figures, policy, monkeypatch):
    assert "fetch smollm2" in figures["SmolLM2 with a LoRA"]["not measured"]
    monkeypatch.setattr(pairs.importlib.util, "find_spec", lambda _: None)
    found = pairs.updates(*policy, SMALL, 1, trl=True)
    assert found == {"not measured": "trl is not installed"}


@pytest.mark.slow
@pytest.mark.skipif(not fetched("smollm2"), reason="python -m refimpl fetch smollm2")
def test_smollm2_trains_with_a_lora():
    pytest.importorskip("peft")
    pytest.importorskip("reasoning_gym")
    here = gpu_check.Here(SMALL, "tiny", "tiny-moe", 1)
    found = gpu_check.smollm2(here)
    assert math.isfinite(found["loss, last rollout"])
    assert found["largest |ratio − 1|"] > 1e-3


# What the comparisons would make of something wrong


def test_a_sampler_that_is_not_the_model_is_seen(policy, monkeypatch):
    def half_as_bold(model, rollout, temperature=1.0):
        return log_probs(model, rollout, 2 * temperature)

    def warm(*given, temperature=1.0, **settings):
        return sample(*given, temperature=max(1.0, temperature), **settings)

    monkeypatch.setattr(pairs, "log_probs", half_as_bold)
    monkeypatch.setattr(pairs, "sample", warm)
    found = pairs.samplers(*policy, SMALL, 1)
    assert found["sampled against teacher-forced, largest |Δ log-prob|, nats"] > 1e-3
    assert found["greedy tokens that are generate's, share"] < 1.0


def test_prompts_shared_wrongly_are_seen(policy, monkeypatch):
    def wrong(model, rollout, share_prompts):
        logp, entropy = log_probs(model, rollout)
        return logp.roll(1, 0) if share_prompts else logp, entropy

    monkeypatch.setattr(pairs, "log_probs", wrong)
    found = pairs.updates(*policy, SMALL, 1)
    assert found["largest |Δ log-prob|, nats"] > 1e-3
    assert found["1 − cosine of the gradients"] > 1e-3


def test_the_angle_between_two_gradients():
    one = torch.tensor([1.0, 0.0])
    assert pairs._angle(one, torch.tensor([0.0, 2.0])) == 1.0
    assert pairs._angle(one, torch.tensor([3.0, 4.0])) == pytest.approx(0.4)


def test_generate_is_credited_with_the_tokens_through_the_first_end(
    policy, monkeypatch
):
    model, tokenizer = policy
    a, end, pad = 5, tokenizer.eos_token_id, tokenizer.pad_token_id
    rows = torch.tensor([[a, a, end, pad], [end, pad, pad, pad], [pad, a, a, a]])

    def generate(input_ids, **settings):
        return torch.cat([input_ids, rows], 1)

    def once(works, repeats):
        return [work() for work in works], [1.0, 0.5]

    monkeypatch.setattr(bench, "_in_turn", once)
    monkeypatch.setattr(model, "generate", generate)
    found = bench.sampler(model, tokenizer, 1, ["1+2=", "3+4=", "5+6="], 1, 4)
    assert found["model.generate, tokens/s"] == (3 + 1 + 4) / 0.5
    rollout = sample(model, tokenizer, ["1+2=", "3+4=", "5+6="], max_new_tokens=4)
    assert found["sampler, tokens/s"] == rollout.mask.sum()


# What goes wrong while measuring


def only(monkeypatch, **parts):
    monkeypatch.setattr(gpu_check, "parts", lambda here: parts)


def broken(here):
    raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")


def test_a_part_that_raises_is_an_error_and_the_others_are_measured(
    monkeypatch, tmp_path, capsys
):
    only(monkeypatch, one=broken, two=lambda here: {"seconds": 1.23456})
    out = tmp_path / "figures.json"
    code = main(["gpu-check", "--device", "cpu", "--tiny", "--out", str(out)])
    found = json.loads(out.read_text())
    said = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert found["one"] == {"error": said}
    assert found["two"] == {"seconds": 1.235}
    assert found["machine"]["torch"] == torch.__version__
    assert code == 1
    printed = capsys.readouterr()
    assert said in printed.out and "1.235" in printed.out
    assert printed.err == "these could not be measured: one\n"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_figure_that_is_not_finite_is_an_error(value):
    found = gpu_check._measured(lambda here: {"loss": value}, gpu_check.Here(SMALL))
    assert found == {"error": f"FloatingPointError: loss is {value}"}


def test_a_run_that_ends_early_is_an_error(monkeypatch):
    def diverged(*_, **__):
        return SimpleNamespace(ended=FloatingPointError("stopped after 1 rollout"))

    monkeypatch.setattr(gpu_check, "train", diverged)
    here = gpu_check.Here(SMALL)
    found = gpu_check._measured(gpu_check.parts(here)["grpo, small"], here)
    assert found == {"error": "FloatingPointError: stopped after 1 rollout"}


def test_the_loss_of_the_last_rollout_and_the_largest_ratio(monkeypatch):
    rows = [
        {"loss": 0.5, "ratio/max_deviation": 0.2, "step_time": 9.0},
        {"loss": 0.25, "ratio/max_deviation": 0.1, "step_time": 3.0},
    ]
    monkeypatch.setattr(gpu_check, "train", lambda *_, **__: History("grpo", rows))
    here = gpu_check.Here(SMALL)
    assert list(gpu_check.parts(here)["grpo, small"](here).values()) == [0.25, 0.2, 3.0]


def test_no_part_begins_when_the_time_is_over(monkeypatch, tmp_path):
    only(monkeypatch, one=broken)
    monkeypatch.setattr(gpu_check, "LIMIT", -1.0)
    found = gpu_check.gpu_check("cpu", tmp_path / "figures.json", tiny=True)
    assert found["one"] == {"not measured": "-1 seconds were over"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "torch sees no CUDA device on this machine"),
        (["--device", "cuda:0", "--tiny"], "torch sees no CUDA device"),
        (["--device", "cpu"], "on the CPU would say nothing about a GPU"),
        (["--device", "gpu", "--tiny"], "unknown device 'gpu'"),
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
