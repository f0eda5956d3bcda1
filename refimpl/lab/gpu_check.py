"""`python -m refimpl gpu-check`: what can only be seen on a GPU, as text and JSON.

On one untrained model: bfloat16 against float32, our sampler against `generate`, our
update against TRL's, shared prompts against repeated ones. What the guide tells one to
run on a GPU: bfloat16, a warm start, more rows. Whether a seed decides a run, and
whether one that was cut in two is the same. Then SmolLM2 with a LoRA, and two rollouts
of every algorithm. Ten minutes at most, and no network.
"""

import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from refimpl import sft
from refimpl.algorithms import ALGORITHMS
from refimpl.checks import UserError, guarded, one_line
from refimpl.config import TrainConfig
from refimpl.files import writable_file, write
from refimpl.lab import pairs, real
from refimpl.lab.bench import _in_turn, _show
from refimpl.lab.store import provenance
from refimpl.models import build, pick_device
from refimpl.real.chat import Chat
from refimpl.real.loading import load
from refimpl.real.lora import lora
from refimpl.real.pretrained import fetched
from refimpl.real.scoring import log_probs
from refimpl.sampling import sample
from refimpl.tasks import Arithmetic, make_tokenizer
from refimpl.train import train

LIMIT = 540.0  # seconds; no part begins later


class Here(NamedTuple):
    """The device and the sizes of a rollout (in `config`), the presets, the timings."""

    config: TrainConfig
    dense: str = "small"
    moe: str = "small-moe"
    repeats: int = 5


def smollm2(here: Here) -> dict:
    """Three rollouts with a LoRA, at the settings of chapter 13."""
    if not fetched(real.MODEL):
        return {"not measured": "run `python -m refimpl fetch smollm2` first"}
    model, tokenizer = load(real.MODEL)
    config = replace(real.GENTLE, rollouts=3, device=here.config.device)
    if here.dense == "tiny":
        few: dict = {"prompts_per_rollout": 2, "group_size": 2, "max_new_tokens": 4}
        config = replace(config, **few, eval_problems=1, eval_samples=1)
    task = Chat(real.TASKS[real.TRAINED_ON](), tokenizer, real.SYSTEM)
    return _trained("grpo", config, lora(model), tokenizer, task, log_probs=log_probs)


def algorithm(here: Here, name: str, preset: str, **settings) -> dict:
    """Two rollouts of an untrained model."""
    config = replace(here.config, **settings)
    return _trained(name, config, *_untrained(preset), Arithmetic())


def repeated(here: Here) -> dict:
    """A run, the same once more, and the same cut in two: on a GPU a sum may depend on
    which thread comes first."""
    model, tokenizer = _untrained(here.dense)
    fixed: dict = {"model": model, "tokenizer": tokenizer, "progress": False}
    fixed |= {"task": Arithmetic(), "reward": pairs.odd_characters}
    half = replace(here.config, rollouts=1)
    with tempfile.TemporaryDirectory() as folder:
        whole, again = (train("grpo", config=here.config, **fixed) for _ in range(2))
        fixed["checkpoint_dir"] = folder
        train("grpo", config=half, **fixed)
        cut = train("grpo", config=here.config, resume=True, **fixed)
    figures: dict = {}
    for name, other in (("same seed", again), ("resumed", cut)):
        weights = zip(whole.model.parameters(), other.model.parameters())
        gaps = [(a - b).abs().max().item() for a, b in weights]
        figures[f"{name}, same history"] = other == whole
        figures[f"{name}, largest |Δ weight|"] = max(gaps)
    return figures


def rows(here: Here) -> dict:
    """Tokens per second, and with eight times the rows: where a step waits for launches
    it takes no longer for these."""
    model, tokenizer = _untrained(here.dense)
    model, n = model.to(here.config.device), here.config.prompts_per_rollout
    figures = {}
    for prompts in (n, 8 * n):
        asked = [row["prompt"] for row in Arithmetic().sample(prompts, seed=0)]
        shape = {"group_size": here.config.group_size, "max_new_tokens": 48}
        draw = partial(sample, model, tokenizer, asked, **shape)
        (rollout,), (seconds,) = _in_turn([draw], here.repeats)
        speed = round(rollout.length.sum().item() / seconds)
        figures[f"{len(rollout)} rows, tokens/s"] = speed
    return figures


def warming(here: Here) -> dict:
    """The first steps of a warm start, whose rate was chosen on the tiny model."""
    settings: dict = {"preset": here.dense, "skill_steps": 60, "habit_steps": 10}
    if here.dense == "tiny":
        settings |= {"skill_steps": 4, "habit_steps": 2}
    start = time.perf_counter()
    _, losses = sft.train(sft.WarmStart(**settings), here.config.device)
    each = (time.perf_counter() - start) / len(losses)
    ends = {"first loss, nats": losses[0], "last loss, nats": losses[-1]}
    return ends | {"seconds per step": each}


def _untrained(preset: Any) -> tuple[Any, Any]:
    tokenizer = make_tokenizer()
    return build(preset, tokenizer), tokenizer


def _trained(name: str, config, model, tokenizer, task, **more) -> dict:
    """A short run, which raises by itself if no ratio leaves 1."""
    more |= {"config": config, "model": model, "tokenizer": tokenizer, "task": task}
    history = train(name, **more, reward=pairs.odd_characters, progress=False)
    if history.ended is not None:
        raise history.ended
    return {
        "loss, last rollout": history["loss"][-1],
        "largest |ratio − 1|": max(history["ratio/max_deviation"]),
        "last rollout with its updates, seconds": history["step_time"][-1],
    }


def pair(here: Here, compare: Callable, **settings) -> dict:
    """One of `pairs`, on an untrained model."""
    model, tokenizer = _untrained(here.dense)
    return compare(model.to(here.config.device), tokenizer, here.config, **settings)


def parts(here: Here) -> dict[str, Callable]:
    """What is measured, by name."""
    n, narrow = here.repeats, partial(algorithm, dtype="bfloat16")
    compared: dict[str, Callable] = {
        "bfloat16 against float32": partial(pair, compare=pairs.precisions),
        "sampler against generate": partial(pair, compare=pairs.samplers, repeats=n),
        "update, prompts shared": partial(pair, compare=pairs.updates, repeats=n),
        "update against TRL": partial(pair, compare=pairs.updates, repeats=n, trl=True),
        "same seed and resumed": repeated,
        "rows of a rollout": rows,
        "warm start": warming,
        "bfloat16: grpo": partial(narrow, name="grpo", preset=here.dense),
        "bfloat16: rspo": partial(narrow, name="rspo", preset=here.moe, replay="R3"),
        "SmolLM2 with a LoRA": smollm2,
    }
    return compared | {
        f"{name}, {preset}": partial(algorithm, name=name, preset=preset)
        for preset in (here.dense, here.moe)
        for name in ALGORITHMS
        if preset == here.moe or name != "rspo"  # which needs routers
    }


def _measured(part: Callable, here: Here) -> dict:
    """A part's figures, or its error if it raises or a figure is not finite."""
    cuda = here.config.device.startswith("cuda")
    try:
        if cuda:  # which raises, too, after an assertion in a kernel
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(here.config.device)
        figures = part(here)
        for name, value in figures.items():
            if isinstance(value, float):
                if not math.isfinite(value):
                    raise FloatingPointError(f"{name} is {value}")
                figures[name] = float(f"{value:.4g}")
        if cuda:
            peak = torch.cuda.max_memory_allocated(here.config.device)
            figures["peak memory, MiB"] = round(peak / 2**20)
    except Exception as error:  # the other parts are measured all the same
        return {"error": one_line(error)}
    return figures


@guarded
def gpu_check(
    device: str = "cuda", out: Path = Path("gpu_check.json"), tiny: bool = False
) -> dict:
    """Print each figure as it is measured; machine and figures are in `out` after each
    part, for what kills this process cannot take them back.

    A part that raises is recorded as its error. `tiny` tries the parts with the tiny
    presets. Raises `UserError` before any work if there is no such device, if it is
    the CPU without `tiny`, or if `out` cannot be written.
    """
    device = str(device)
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            "gpu-check measures a GPU, and torch sees no CUDA device on this machine: "
            "run it where there is one, or try its parts with --device cpu --tiny"
        )
    if pick_device(device).type == "cpu" and not tiny:
        raise UserError(
            "gpu-check on the CPU would say nothing about a GPU: give --tiny too, "
            "which tries its parts with the tiny presets"
        )
    writable_file(out, "the measurements")
    here = Here(TrainConfig(rollouts=2, eval_problems=8, device=device))
    if tiny:
        few: dict = {"prompts_per_rollout": 4, "group_size": 4, "max_new_tokens": 8}
        config = replace(here.config, **few, minibatches=2)
        here = Here(config, "tiny", "tiny-moe", repeats=1)
    start, figures = time.perf_counter(), {"machine": _show(_machine(device))}
    for name, part in parts(here).items():
        print(f"\n{name}")
        late = time.perf_counter() - start > LIMIT
        over = {"not measured": f"{LIMIT:.0f} seconds were over"}
        figures[name] = _show(over if late else _measured(part, here))
        seconds = round(time.perf_counter() - start, 1)
        figures["machine"]["seconds in all"] = seconds
        text = json.dumps(figures, indent=2, ensure_ascii=False) + "\n"
        write(out, text)
    print(f"\n{seconds} seconds in all; wrote {out}")
    return figures


def _machine(device: str) -> dict[str, Any]:
    if not device.startswith("cuda"):
        return {"device": device, **provenance()}
    gpu = torch.cuda.get_device_properties(device)
    return {
        "device": gpu.name,
        "memory, MiB": round(gpu.total_memory / 2**20),
        "CUDA": torch.version.cuda,
        **provenance(),
    }
