"""The gate for a machine with a GPU: `python -m pytest -m gpu -n 0`.

With the CPU's random numbers, float64 on the GPU must give the CPU's history and
weights: a tensor that is lost, drawn twice or read in another order changes them.
"""

import json
import math
import warnings

import pytest
import torch

from experiments.gpu import captured, check, experts
from refimpl import UserError, collect, loop, sampling, seeds, sft
from refimpl.algorithms import ALGORITHMS
from refimpl.interop.scored import advantages_of
from refimpl.loss_terms import KL, RouterShift
from refimpl.pretrained import fast, logprobs
from refimpl.sft import WarmStart
from tests import worlds
from tests.rollout.test_rollout import drawn
from tests.worlds import fixed_noise

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
]

MODELS = {"dense": worlds.random_model, "experts": worlds.random_moe}
MODELS["lora"] = lambda: worlds.with_lora(worlds.random_model(), r=2)
EXACT = [
    "grpo dense unbiased_k3 entropy_bonus=0.01",
    "grpo dense sampler_delay=1 kpop=0.05 opsm=0.001",
    "grpo dense top_k=5 top_p=0.9",
    "grpo dense dynamic_sampling=True overlong_share=0.5 overlong_filtering=True",
    "grpo dense shared",
    "grpo lora beta=0.1",
    "ppo dense beta=0.1 kl_in=reward value_clip=None",
    "gspo experts shift_with_gradient",
    "grpo experts replay=R2 router_noise=0.2",
    "rspo experts replay=R3 router_noise=0.2",
]
ROUNDED = [
    "grpo dense rollout_dtype=int8 sampler_delay=1 dtype=float32",
    "grpo lora recomputed beta=0.1 dtype=bfloat16",
    "rspo experts cast replay=R3 router_noise=0.2 dtype=bfloat16",
]
OBJECTS = {
    "unbiased_k3": {"loss_terms": [KL(0.1, "unbiased_k3")]},
    "shift_with_gradient": {"corrections": [RouterShift(detach=False)]},
}
"""Method, model, objects, how log-probs are read, settings."""


def trained(case: str, device: str = DEVICE, **more):
    """Make two short rollouts and return their history."""
    name, model, *words = case.split()
    settings = worlds.settings([word for word in words if "=" in word])
    given = {"rollouts": 2, "max_new_tokens": 8, "micro_batch_size": 4, "eval_every": 2}
    given |= {"dtype": "float64", "learning_rate": 1e-3, "device": device} | settings
    given |= {"reward": fixed_noise, "model": MODELS[model]()} | more
    for word in OBJECTS.keys() & words:
        given |= OBJECTS[word]
    if "cast" in words:
        experts.use(given["model"])
    if "shared" in words:
        given["log_probs"] = logprobs.log_probs
    if "recomputed" in words:
        given["log_probs"] = logprobs.recomputed(logprobs.log_probs)
    history = worlds.small_run(name, **given)
    assert history.ended is None
    assert {p.device.type for p in history.model.parameters()} == {device}
    return history


def numbers(history) -> torch.Tensor:
    """Return everything that was recorded, and the weights."""
    rows = [{**row, "step_time": 0.0} for row in history.rows]
    recorded = [x or 0.0 for row in rows for x in row.values()]
    weights = (p.detach().cpu().flatten() for p in history.model.parameters())
    return torch.cat([torch.tensor(recorded, dtype=torch.float64), *weights])


def gap(one, other) -> float:
    return (numbers(one) - numbers(other)).abs().max().item()


@pytest.fixture
def same_dice(monkeypatch):
    """Random numbers are drawn on the CPU, also for tensors on the GPU."""

    def on_the_cpu(draw):
        return lambda x, *args, **named: x.copy_(draw(x.cpu(), *args, **named))

    make = seeds.generator
    monkeypatch.setattr(seeds, "generator", lambda seed, _="cpu": make(seed))
    for name in ("exponential_", "normal_"):
        draw = on_the_cpu(getattr(torch.Tensor, name))
        monkeypatch.setattr(torch.Tensor, name, draw)


@pytest.mark.parametrize("case", EXACT)
def test_a_run_is_that_of_the_cpu(case, same_dice):
    here = trained(case)
    assert max(here["ratio/max_deviation"]) > 1e-2
    assert gap(here, trained(case, "cpu")) < 1e-7


@pytest.mark.parametrize("case", ROUNDED)
def test_a_run_in_a_narrow_dtype_learns(case):
    here = trained(case)
    assert numbers(here).isfinite().all() and max(here["ratio/max_deviation"]) > 1e-2


def test_every_method_makes_the_cpus_step(same_dice):
    for name in ALGORITHMS:
        model = "experts" if name == "rspo" else "dense"  # RSPO needs routers
        one, other = (trained(f"{name} {model}", d) for d in (DEVICE, "cpu"))
        assert gap(one, other) < 1e-7, name


@pytest.mark.parametrize("first", ["cpu", DEVICE])
def test_a_run_goes_on_where_it_was_saved(first, same_dice, tmp_path):
    case, folder = "ppo dense sampler_delay=1", {"checkpoint_dir": tmp_path}
    trained(case, first, rollouts=1, **folder)
    assert gap(trained(case, resume=True, **folder), trained(case)) < 1e-7


def test_a_run_is_the_same_again():
    """With the device's own dice. No kernel promises the order of its sums."""
    case = "grpo dense"
    assert gap(trained(case), trained(case)) < 1e-7


def test_a_warm_start_is_that_of_the_cpu():
    for preset in ("tiny", "tiny-moe"):
        start = WarmStart(preset=preset, skill_steps=4, habit_steps=2, batch_size=8)
        losses, other = (sft.train(start, device)[1] for device in (DEVICE, "cpu"))
        assert losses == pytest.approx(other, rel=1e-3) and losses[-1] < losses[0]


def test_advantages_that_somebody_made_on_the_cpu_are_taken():
    rewards, mask = torch.arange(4.0).to(DEVICE), torch.ones(4, 3).to(DEVICE)
    made = advantages_of(lambda scored: scored.rewards.cpu(), rewards, mask, 2)
    assert made.device == rewards.device and torch.equal(made, rewards)


def test_a_policy_that_diverges_ends_its_run_and_not_the_device(monkeypatch):
    updates = loop.updates

    def spoiled(run, batch, step):
        measured = updates(run, batch, step)
        next(run.model.parameters()).data.mul_(math.nan if step else 1.0)
        return measured

    monkeypatch.setattr(loop, "updates", spoiled)
    with pytest.warns(UserWarning, match="no longer finite"):
        history = worlds.small_run(device=DEVICE, reward=fixed_noise)
    assert isinstance(history.ended, UserError) and len(history) == 2
    assert torch.ones(2, device=DEVICE).sum().item() == 2


def waits(tokens: int) -> int:
    """Count how often the host waits in a second rollout of so many tokens."""
    given = {"prompts_per_rollout": 8, "max_new_tokens": tokens, "device": DEVICE}
    given |= {"model": worlds.random_model(), "reward": fixed_noise}
    run = worlds.prepared("grpo", **given)
    loop.updates(run, collect(run, 0)[0], 0)  # what is asked for once
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            batch, _ = collect(run, 1)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert batch.mask.shape[1] == tokens
    return sum("synchroniz" in str(one.message) for one in seen)


def test_the_host_waits_once_per_token(monkeypatch):
    """It asks which rows have ended."""
    monkeypatch.setattr(sampling, "decoder_factories", [captured.reader])
    assert 0 < waits(12) - waits(4) <= 8


@pytest.mark.parametrize("few", [0, 128])
def test_a_graph_draws_what_single_steps_do(few, monkeypatch):
    """Rows stay where they are until half are gone; few rows stay to the end."""
    monkeypatch.setattr(captured, "FEW", few)
    model = worlds.random_model().double().to(DEVICE)
    kinds = (fast.Direct, captured.Captured)
    single, graph = (drawn(model, kind, monkeypatch) for kind in kinds)
    assert torch.equal(graph.ids, single.ids) and graph.truncated.any()
    assert (graph.logp - single.logp).abs().max() < 1e-6


def test_gpu_check_measures_every_part(monkeypatch, tmp_path):
    monkeypatch.setattr(check, "fetched", lambda _: False)
    monkeypatch.setattr(sampling, "decoder_factories", [])
    out = tmp_path / "figures.json"
    assert check.gpu_check(DEVICE, out, tiny=True) == 0
    assert json.loads(out.read_text())["GRPO"]["peak memory, MiB"] > 0
