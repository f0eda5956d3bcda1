"""`gpu-check`: its parts on the CPU, with the tiny presets."""

import json
import math
import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from experiments import bench
from experiments.command import main
from experiments.gpu import check, experts, machine, pairs, profile
from refimpl import ALGORITHMS, History, sample
from refimpl.models import count_parameters
from refimpl.options import Run
from refimpl.pretrained.logprobs import log_probs
from tests import worlds
from tests.worlds import EOS, PAD, TOKENIZER, random_model, warm_model

SMALL = replace(worlds.SMALL, max_new_tokens=8)
HERE = check.Here(SMALL, "tiny", "tiny-moe", 1)


@pytest.fixture(scope="module")
def figures(tmp_path_factory) -> dict:
    """All of it but SmolLM2, which has a test of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "fetched", lambda _: False)
        out = tmp_path_factory.mktemp("gpu") / "figures.json"
        measured = check.gpu_check("cpu", out, tiny=True)
    assert json.loads(out.read_text()) == measured
    return measured


def test_every_algorithm_trains_where_it_can_and_is_timed(figures):
    """RSPO needs routers."""
    named = {f"{name}, {x}" for name in ALGORITHMS for x in ("tiny", "tiny-moe")}
    named |= {"GRPO", "GRPO, bfloat16", "RSPO, R3, bfloat16"}
    table = check.table(figures)
    for name in named - {"rspo, tiny"}:
        run = figures[name]
        tokens = run["tokens/s"] * run["seconds per rollout"]
        assert 16 <= tokens <= 16 * 8 and run["largest |ratio − 1|"] > 1e-3, name
        assert re.search(rf"^{name} .* {run['tokens/s']:,.4g} .* – +–$", table, re.M)
    few, many = (figures[f"sampler, {n} rows"] for n in (16, 128))
    assert 0 < few["tokens/s"] < many["tokens/s"]
    for run in (few, many, figures["GRPO"]):
        assert 0 < run["at least, seconds"] < run["seconds per rollout"]
    warm = figures["GRPO to 0.90"]
    assert 0 < warm["last loss, nats"] < warm["first loss, nats"]


def test_limits_and_waits_of_a_device():
    """Two prompts of 3 and 5 tokens, with 2 and 1 new ones, in 2 steps."""
    model = random_model()  # 2 layers, 4 heads of 16
    rollout = sample(model, TOKENIZER, ["1+2=", "1+2+3="], max_new_tokens=2)
    rollout.mask[:] = torch.tensor([[1.0, 1], [1, 0]])
    prompts, weights = rollout.prompt_length.tolist(), count_parameters(model)
    cached = 2 * 2 * 64 * (2 * prompts[0] + 1 + prompts[1])
    least = machine.least_bytes(model, rollout, width=2, passes=3)
    assert least == 2 * (weights * (2 + 2 * 3) + cached)
    limits = machine.Limits(bandwidth=1e9, launch=1e-5)
    assert limits.seconds(2e9, 100) == limits.seconds(2e9, None) == 2.0
    assert limits.seconds(2e9, 300_000) == pytest.approx(3.0)
    seen = {"cudaLaunchKernel": (90, 9e5), "cuLaunchKernelEx": (8, 1e5)}
    seen |= {"cudaGraphLaunch": (2, 1e5), "cudaStreamSynchronize": (4, 5e5)}
    seen |= {"cudaMemcpyAsync": (4, 1e5), "void kernel(float*)": (98, 9e6)}
    events = [
        SimpleNamespace(key=k, count=n, self_cpu_time_total=t)
        for k, (n, t) in seen.items()
    ]
    assert machine.seen(events, 2.0) == (pytest.approx(0.3), 100)
    assert machine.seen([], 2.0) == (None, None)


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


def test_precisions_are_compared_on_response_tokens_alone(monkeypatch):
    """A bfloat16 that gives every token 0.1 nats less; padding has none to give."""
    read, seen = Run.read, []

    def lower(run, model, rollout):
        seen.append(rollout.mask)
        found = read(run, model, rollout)
        low = 0.1 * (run.config.dtype == "bfloat16") * rollout.mask
        return found._replace(logp=found.logp - low)

    monkeypatch.setattr(Run, "read", lower)
    monkeypatch.setattr("refimpl.options.precision", lambda *_: torch.enable_grad())
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
    assert speed["generate: share of products, attention, drawing"] == 0


def test_a_methods_figures_are_those_of_its_runs_and_stand_in_the_table(monkeypatch):
    """Three seeds, rollouts of 2 s: two runs are there after the first, one never."""
    names = "accuracy", "step_time", "num_samples", "completions/mean_length"
    ends = (0.95, 0.95), (0.95, 0.9), (None, 0.5)
    runs = [[(one, 2.0, 16.0, 5.0), (two, 2.0, 64.0, 10.0)] for one, two in ends]
    rows = ([dict(zip(names, row)) for row in run] for run in runs)
    monkeypatch.setattr(bench, "train", lambda *_, **__: History("grpo", next(rows)))
    monkeypatch.setattr(machine, "peak_memory", iter((400, 4410)).__next__)
    found = bench.training("grpo", "tiny", 3)
    assert found["grpo: runs that reached 0.90"] == 2
    assert found["grpo: sampled tokens/s"] == (16 * 5 + 48 * 10) / 4
    found["grpo: rollouts/s"] = bench._or_none(math.inf)
    assert bench.table(found).splitlines()[2:] == [
        "| GRPO | 0.9 | 0.5 | 1 | 2 | 2 | – | 140 | 4,410 |"
    ]


def test_the_phases_of_a_rollout_are_its_time(monkeypatch):
    monkeypatch.setattr(profile, "TrainConfig", lambda **x: replace(SMALL, **x))
    start = time.perf_counter()
    found = profile.profile(1, 1)
    assert 0.01 < sum(found.values()) < time.perf_counter() - start
    python = f"{profile.SAMPLING}: {profile.PYTHON}"  # two runs' difference: may be 0
    assert len(found) == 9 and all(x > 0 for n, x in found.items() if n != python)
    clock, ticks = profile.Clock(), iter((1.0, 3.0, 7.0, 8.0))
    clock.mark = 0.0
    monkeypatch.setattr(profile.time, "perf_counter", ticks.__next__)
    inner = clock.timing(lambda: None, "inner")
    clock.timing(inner, "outer")()
    assert clock.seconds == {"elsewhere": 1.0, "outer": 2.0 + 1.0, "inner": 4.0}


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


def test_a_device_that_no_longer_answers_takes_no_figure_back(monkeypatch, tmp_path):
    """After an assertion in a kernel every call raises, `empty_cache` too."""
    monkeypatch.setattr(torch.cuda, "empty_cache", broken)
    cuda = check.Here(SimpleNamespace(device="cuda"))
    assert check._measured(lambda here: {}, cuda) == {"error": WORDS}
    out = tmp_path / "figures.json"

    def killed(here):
        assert json.loads(out.read_text())["one"] == {"seconds": 1.0}
        raise KeyboardInterrupt

    only(monkeypatch, one=lambda here: {"seconds": 1.0}, two=killed)
    with pytest.raises(KeyboardInterrupt):
        check.gpu_check("cpu", out, tiny=True)
    assert json.loads(out.read_text())["one"] == {"seconds": 1.0}


def test_no_part_begins_when_the_time_is_over(monkeypatch, tmp_path):
    only(monkeypatch, one=broken)
    monkeypatch.setattr(check, "LIMIT", -1.0)
    measured = check.gpu_check("cpu", tmp_path / "figures.json", tiny=True)
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


def test_experts_learn_in_autocasts_dtype():
    """Their weights and gradients stay float32."""
    model, slopes, ids = worlds.random_moe(), [], torch.arange(3, 15).view(2, 6)
    stacked = [p for p in model.parameters() if p.ndim == 3]
    for choose in (lambda m: m.set_experts_implementation("grouped_mm"), experts.use):
        choose(model)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(ids, labels=ids).loss
        every = torch.autograd.grad(loss, stacked)
        assert {x.dtype for x in (*every, *stacked)} == {torch.float32}
        slopes.append(torch.cat([x.flatten() for x in every]))
    assert 1e-4 < (slopes[1] - slopes[0]).norm() / slopes[0].norm() < 0.05
