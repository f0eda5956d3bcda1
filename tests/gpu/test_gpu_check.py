"""`gpu-check`: its parts on the CPU, with the tiny presets."""

import json
import math
import re
from types import SimpleNamespace

import pytest
import torch

from experiments.command import main
from experiments.gpu import check, experts
from tests import worlds


@pytest.fixture(scope="module")
def figures(tmp_path_factory) -> dict:
    """All of it but SmolLM2, which is not fetched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "fetched", lambda _: False)
        out = tmp_path_factory.mktemp("gpu") / "figures.json"
        assert check.gpu_check("cpu", out, tiny=True) == 0
    return json.loads(out.read_text())


@pytest.mark.ci
def test_every_part_is_timed_by_its_tokens(figures):
    table = check.table(figures)
    for name in ("GRPO", "GRPO, bfloat16", "RSPO, R3, bfloat16"):
        run = figures[name]
        tokens = run["tokens/s"] * run["seconds per rollout"]
        assert 16 <= tokens <= 16 * 8 and run["largest |ratio − 1|"] > 1e-3, name
        assert re.search(rf"^{name} .* {run['tokens/s']:,.4g} .* –$", table, re.M)
    samplers = (figures[f"sampler, {n} rows"] for n in (16, 128))
    few, many = (x["tokens/s"] * x["seconds per rollout"] for x in samplers)
    assert many > 4 * few > 0
    warm = figures["GRPO to 0.90"]
    assert 0 < warm["last loss, nats"] < warm["first loss, nats"]
    assert "fetch smollm2" in figures["SmolLM2 with a LoRA"]["not measured"]


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
    printed = capsys.readouterr()
    assert code == 1 and WORDS in printed.out and "1.235" in printed.out
    assert printed.err.startswith("these could not be measured: one; gives nan;")
    # After an assertion in a kernel every call raises, `empty_cache` too.
    monkeypatch.setattr(torch.cuda, "empty_cache", broken)
    cuda = check.Here(SimpleNamespace(device="cuda"))
    assert check.figures_of(lambda here: {}, cuda) == {"error": WORDS}


def test_what_was_measured_before_a_crash_or_limit_is_written(monkeypatch, tmp_path):
    out = tmp_path / "figures.json"

    def killed(here):
        raise KeyboardInterrupt

    only(monkeypatch, one=lambda here: {"seconds": 1.0}, two=killed)
    with pytest.raises(KeyboardInterrupt):
        check.gpu_check("cpu", out, tiny=True)
    assert json.loads(out.read_text())["one"] == {"seconds": 1.0}
    monkeypatch.setattr(check, "LIMIT", -1.0)
    check.gpu_check("cpu", out, tiny=True)
    over = {"not measured": "the limit of -1 seconds was reached"}
    assert json.loads(out.read_text())["two"] == over


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
