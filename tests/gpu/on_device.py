"""Run by test_device.py, in a process whose CUDA device is simulated.

With the CPU's dice, float64 on the device must give the CPU's history and weights: what
is lost on the way, drawn twice or read in another order shows in them.
"""

import math
from functools import partial
from pathlib import Path

import pytest
import torch

from experiments.gpu import captured, check, experts
from refimpl import UserError, collect, loop, sampling, seeds, sft
from refimpl.algorithms import ALGORITHMS, get
from refimpl.cli import parse_settings
from refimpl.evaluation import scores
from refimpl.interop.scored import advantages_of
from refimpl.pretrained import logprobs
from refimpl.rollout import Rollout
from refimpl.sft import WarmStart
from tests import worlds
from tests.gpu import simgpu
from tests.worlds import TOKENIZER, fixed_noise

captured.use()


def mixture():
    """A mixture of experts, as gpu-check has it."""
    model = worlds.random_moe()
    experts.use(model)
    return model


MODELS = {"dense": worlds.random_model, "experts": mixture}
MODELS["lora"] = lambda: worlds.with_lora(worlds.random_model(), r=2)
CASES = [f"{name} dense" for name in ALGORITHMS if name != "rspo"]
CASES += [f"{name} experts dtype=bfloat16" for name in ALGORITHMS]
CASES += Path(__file__).with_name("cases.txt").read_text().splitlines()
"""Method, model, how log-probs are read, settings; float64 unless they say another."""


def asked(case: str) -> tuple[str, dict]:
    """The method, and what its run is given."""
    name, model, *words = case.split()
    given = parse_settings(get(name), [word for word in words if "=" in word])
    given |= {"reward": fixed_noise, "model": MODELS[model]()}
    if {"shared", "recomputed", "slices"} & {*words}:
        read = partial(logprobs.log_probs, share_prompts="shared" in words)
        again = "recomputed" in words
        given["log_probs"] = logprobs.recomputed(read) if again else read
    return name, given


SHORT = {"rollouts": 2, "max_new_tokens": 8, "micro_batch_size": 4, "eval_every": 2}
SHORT |= {"dtype": "float64", "learning_rate": 1e-3}


def trained(case: str, device: str = "cuda", **more):
    """The history of two rollouts."""
    name, given = asked(case)
    history = worlds.small_run(name, **SHORT | given | {"device": device} | more)
    assert history.ended is None
    assert {p.device.type for p in history.model.parameters()} == {device}
    return history


def numbers(history) -> torch.Tensor:
    """All that it recorded, and its weights."""
    rows = [{**row, "step_time": 0.0} for row in history.rows]
    recorded = [x or 0.0 for row in rows for x in row.values()]
    weights = (p.detach().cpu().flatten() for p in history.model.parameters())
    return torch.cat([torch.tensor(recorded, dtype=torch.float64), *weights])


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_that_of_the_cpu_or_rounded_and_alive(case, monkeypatch):
    if "slices" in case:
        monkeypatch.setattr(logprobs, "SLICE", 2**6)
    history = trained(case)
    assert numbers(history).isfinite().all()
    assert max(history["ratio/max_deviation"]) > 1e-2
    if " dtype" not in case:
        gap = numbers(history) - numbers(trained(case, "cpu"))
        assert gap.abs().max() < 1e-12


@pytest.mark.parametrize("first", ["cpu", "cuda"])
@pytest.mark.parametrize("case", ["ppo dense sampler_delay=1", "grpo lora beta=0.1"])
def test_a_run_goes_on_where_it_was_saved(case, first, tmp_path):
    folder = {"checkpoint_dir": tmp_path}
    trained(case, first, rollouts=1, **folder)
    again, whole = trained(case, resume=True, **folder), trained(case)
    gap = (numbers(again) - numbers(whole)).abs().max()
    assert gap <= (1e-12 if first == "cpu" else 0)


def test_warm_starts_and_evaluations_are_those_of_the_cpu():
    short = {"skill_steps": 4, "habit_steps": 2, "batch_size": 8}
    for preset in ("tiny", "tiny-moe"):
        settings = WarmStart(preset=preset, **short)
        losses, other = (sft.train(settings, device)[1] for device in ("cuda", "cpu"))
        assert losses == pytest.approx(other, rel=1e-4) and losses[-1] < losses[0]
    model, asked = worlds.random_model().double(), {"problems": 16, "samples": 2}
    here, there = (scores(model.to(d), TOKENIZER, **asked) for d in ("cuda", "cpu"))
    assert torch.equal(here, there) and here.shape == (16, 2)


# Faults put in on purpose, of which the CPU knows nothing


def on_the_host(function, name=""):
    """`function`, but a tensor of what it returns stays on the CPU."""

    def wrong(*given, **named):
        made = function(*given, **named)
        if name:
            object.__setattr__(made, name, getattr(made, name).cpu())
        return made if name else made.cpu()

    return wrong


FAULTS = {
    "a tensor": (sampling, "end_tokens", on_the_host(sampling.end_tokens)),
    "a mask": (Rollout, "rows", on_the_host(Rollout.rows, "mask")),
    "a generator": (seeds, "generator", lambda seed, _="": torch.Generator()),
    "numpy": (torch.Tensor, "tolist", lambda x: x.detach().numpy().tolist()),
}
WORDS = "on the same device|Expected a 'cuda' device type for generator|to numpy"


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_gpu_refuses_is_refused(fault, monkeypatch):
    monkeypatch.setattr(*FAULTS[fault])
    trained("grpo dense", "cpu")
    with pytest.raises((RuntimeError, TypeError), match=WORDS):
        trained("grpo dense")


def test_advantages_that_somebody_made_on_the_cpu_are_taken():
    rewards, mask = torch.arange(4.0).cuda(), torch.ones(4, 3).cuda()
    made = advantages_of(lambda scored: scored.rewards.cpu(), rewards, mask, 2)
    assert made.is_cuda and torch.equal(made, rewards)


def test_a_policy_that_diverges_ends_its_run_and_not_the_device(monkeypatch):
    updates = loop.updates

    def spoiled(run, batch, step):
        measured = updates(run, batch, step)
        next(run.model.parameters()).data.mul_(math.nan if step else 1.0)
        return measured

    monkeypatch.setattr(loop, "updates", spoiled)
    with pytest.warns(UserWarning, match="no longer finite"):
        history = worlds.small_run(device="cuda", reward=fixed_noise)
    assert isinstance(history.ended, UserError) and len(history) == 2
    torch.cuda.synchronize()


def waits(case: str, tokens: int) -> int:
    """Of a second rollout that decodes so many tokens."""
    name, given = asked(case)
    given |= {"device": "cuda", "prompts_per_rollout": 8, "max_new_tokens": tokens}
    run = worlds.prepared(name, **given)
    loop.updates(run, collect(run, 0)[0], 0)  # what is asked once
    with simgpu.record() as sampled:
        batch, _ = collect(run, 1)
    assert batch.mask.shape[1] == tokens
    return sampled.total()


@pytest.mark.parametrize(
    ("case", "each"),
    [("grpo dense", 1), ("rspo experts dtype=bfloat16 replay=R3", 2)],
)
def test_the_host_waits_once_a_token(case, each):
    """For who has ended; and of experts, whose step is in no graph, in transformers,
    which looks for padding."""
    assert waits(case, 12) - waits(case, 4) <= 8 * each


def test_gpu_check_outlives_a_device_that_answers_no_more(monkeypatch, tmp_path):
    """Last of all: no call after the assertion succeeds."""
    every = check.parts

    def asserting(here):
        torch.zeros(3).cuda()[torch.tensor([7]).cuda()]

    last = {"an assertion": asserting, "after it": lambda here: {"seconds": 1.0}}
    monkeypatch.setattr(check, "fetched", lambda _: False)
    monkeypatch.setattr(check, "parts", lambda here: every(here) | last)
    figures = check.gpu_check("cuda", tmp_path / "figures.json", tiny=True)
    failed = {name: x["error"] for name, x in figures.items() if "error" in x}
    assert failed.keys() == last.keys()
    assert all("device-side assert" in error for error in failed.values())
    assert figures["same seed and resumed"]["resumed, same history"]
    assert figures["grpo, tiny-moe"]["peak memory, MiB"] > 0
