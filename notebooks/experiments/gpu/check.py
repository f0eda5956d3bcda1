"""`python -m experiments gpu-check`: what can only be seen on a GPU, as text and JSON.

How fast is it? Timed are the sampler with few and many rows, GRPO in float32, by TRL's
trainer, and in bfloat16, a mixture of experts with its routing replayed, and SmolLM2
with a LoRA; some also with `transformers`' own decode step or experts, which this
folder replaces. Does it learn? `small` is trained from its warm start to an accuracy.
All of it takes ten minutes at most and needs no network. `pytest -m gpu` tests whether
every method computes the right numbers.
"""

import importlib.util
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from tabulate import tabulate

from experiments import bench, real
from experiments.bench import GOAL, show
from experiments.gpu import captured, experts
from experiments.store import provenance
from refimpl import sampling, sft
from refimpl.config import Preset, TrainConfig
from refimpl.evaluation import evaluate
from refimpl.files import check_output, write
from refimpl.loop import collect, updates
from refimpl.models import build, one_thread
from refimpl.moe import is_moe
from refimpl.options import prepare
from refimpl.pretrained import fast
from refimpl.pretrained.lora import lora
from refimpl.pretrained.packaged import fetched
from refimpl.rollout import Rollout
from refimpl.sampling import sample
from refimpl.tasks import Arithmetic, make_tokenizer
from refimpl.validation import UserError, guarded, one_line

LIMIT = 540.0
"""Seconds after which no further part begins."""
COLUMNS = {
    "tokens/s": "tokens/s",
    "seconds per rollout": "s per rollout",
    "peak memory, MiB": "peak MiB",
}
"""Figures in the table, with their headings. A part that has some of them is a row."""


class Here(NamedTuple):
    """Where and on what the parts are measured.

    `config` holds the device and the sizes of a rollout, `warming` settings of the warm
    start, `patience` the most seconds of training to `GOAL`.
    """

    config: TrainConfig
    dense: Preset = "small"
    moe: Preset = "small-moe"
    repeats: int = 5
    warming: Mapping = {}
    patience: float = 90.0


def measured(here: Here, work: Callable[[], Rollout], model) -> dict:
    """Time `work`, which makes a rollout, after a first call for set-up."""
    rollouts: list[Rollout] = []

    def waited() -> None:
        rollouts.append(work())
        if here.config.device.startswith("cuda"):
            torch.cuda.synchronize(here.config.device)

    with one_thread(model):
        waited()
        seconds = statistics.median(bench.seconds(waited) for _ in range(here.repeats))
    tokens = statistics.median(r.length.sum().item() for r in rollouts)
    return {"tokens/s": tokens / seconds, "seconds per rollout": seconds}


def untrained(preset: Any, cast: bool = True) -> tuple[Any, Any]:
    """Make a model and its tokenizer. `cast`: its experts compute in bfloat16."""
    tokenizer = make_tokenizer()
    model = build(preset, tokenizer)
    if cast and is_moe(model):
        experts.use(model)
    return model, tokenizer


def sampler(here: Here, times: int) -> dict:
    """Time sampling alone, with `times` as many rows.

    If a step mostly waits for kernel launches, more rows take no more time.
    """
    model, tokenizer = untrained(here.dense)
    model, config = model.to(here.config.device), here.config
    rows = Arithmetic().sample(times * config.prompts_per_rollout, seed=0)
    shape = {"group_size": config.group_size, "max_new_tokens": config.max_new_tokens}
    draw = partial(sample, model, tokenizer, [row["prompt"] for row in rows], **shape)
    return measured(here, draw, model)


def odd_characters(prompts, completions, **columns) -> list[float]:
    """Return the share of odd character codes, which differs even without training."""
    return [sum(ord(c) % 2 for c in text) / max(1, len(text)) for text in completions]


def training(here: Here, name: str, policy: tuple, task, **more) -> dict:
    """Time rollouts with their updates."""
    (model, tokenizer), config = policy, here.config
    run = prepare(name, config, model, tokenizer, task, odd_characters, **more)
    steps, last = itertools.count(), {}

    def work() -> Rollout:
        batch, _ = collect(run, step := next(steps))
        last.update(updates(run, batch, step))
        return batch.rollout

    return measured(here, work, run.model) | {
        "loss, last rollout": last["loss"],
        "largest |ratio − 1|": last["ratio/max_deviation"],
    }


def on_arithmetic(
    here: Here, name: str, preset: str, cast: bool = True, **settings
) -> dict:
    """Train an untrained model."""
    here = here._replace(config=replace(here.config, **settings))
    return training(here, name, untrained(preset, cast), Arithmetic())


def by_trl(here: Here) -> dict:
    """Time TRL's GRPOTrainer with the same model, problems, reward and settings."""
    if importlib.util.find_spec("trl") is None:
        return {"not measured": "trl is not installed"}
    from experiments.gpu import compare_trl

    config = replace(here.config, rollouts=1 + here.repeats)
    given = (*untrained(here.dense), Arithmetic(), config, odd_characters)
    return {"seconds per rollout": statistics.median(compare_trl.by_trl(*given))}


def smollm2(here: Here) -> dict:
    """Train SmolLM2 with a LoRA as chapter 13 does, each mini-batch in one pass."""
    if not fetched(real.MODEL):
        return {"not measured": "run `python -m refimpl fetch smollm2` first"}
    model, tokenizer, task, config, read = bench.world("smollm2")
    config = replace(config, device=here.config.device, micro_batch_size=32)
    if here.dense == "tiny":
        few: dict = {"prompts_per_rollout": 2, "group_size": 2, "max_new_tokens": 4}
        config = replace(config, **few, eval_problems=1, eval_samples=1)
    there, policy = here._replace(config=config), (lora(model), tokenizer)
    return training(there, "grpo", policy, task, log_probs=read)


def to_goal(here: Here) -> dict:
    """Train a warm start on the device, then run GRPO until `GOAL` or out of patience.

    The learning rate of the warm start was chosen on the tiny model.
    """
    start, tokenizer = time.perf_counter(), make_tokenizer()
    settings = sft.WarmStart(preset=here.dense, **here.warming)
    model, losses = sft.train(settings, here.config.device)
    warmed, seconds, step = time.perf_counter() - start, 0.0, 0
    run = prepare("grpo", here.config, model, tokenizer)
    before = accuracy = evaluate(run.model, tokenizer)
    while accuracy < GOAL and seconds < here.patience:
        began = time.perf_counter()
        for _ in range(2):
            batch, _ = collect(run, step)
            updates(run, batch, step)  # reads the loss, so it waits for the device
            step += 1
        seconds += time.perf_counter() - began
        accuracy = evaluate(run.model, tokenizer)
    return {
        "warm start, seconds": warmed,
        "first loss, nats": losses[0],
        "last loss, nats": losses[-1],
        "accuracy before": before,
        "accuracy": accuracy,
        "rollouts": step,
        "seconds of training": seconds,
    }


def by_steps(here: Here, part: Callable, readers: list) -> dict:
    """Run a part with these decoders, or with `transformers`' own if none fits."""
    with patch.object(sampling, "decoder_factories", readers):
        return part(here)


def parts(here: Here) -> dict[str, Callable]:
    """Return all parts by name, in their order."""
    rows = here.config.prompts_per_rollout * here.config.group_size
    grpo = partial(on_arithmetic, name="grpo", preset=here.dense)
    rspo = partial(
        on_arithmetic, name="rspo", preset=here.moe, replay="R3", dtype="bfloat16"
    )
    stepping: dict[str, Callable] = {
        f"sampler, {rows:,} rows": partial(sampler, times=1),
        f"sampler, {8 * rows:,} rows": partial(sampler, times=8),
        "GRPO": grpo,
        "SmolLM2 with a LoRA": smollm2,
    }
    steps: dict[str, list] = {
        "": sampling.decoder_factories,
        ", step written out": [fast.reader],
        ", transformers' step": [],
    }
    every: dict[str, Callable] = {
        name + step: partial(by_steps, part=part, readers=readers)
        for name, part in stepping.items()
        for step, readers in steps.items()
    }
    return every | {
        "GRPO by TRL": by_trl,
        "GRPO, bfloat16": partial(grpo, dtype="bfloat16"),
        "RSPO, R3, bfloat16": rspo,
        "RSPO, R3, bfloat16, transformers' experts": partial(rspo, cast=False),
        f"GRPO to {GOAL:.2f}": to_goal,
    }


def figures_of(part: Callable, here: Here) -> dict:
    """Return a part's figures, or its error if it raises or a figure is not finite."""
    cuda = here.config.device.startswith("cuda")
    try:
        if cuda:  # raises as well once an assertion in a kernel has failed
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
    except Exception as error:  # the other parts can still be measured
        return {"error": one_line(error)}
    return figures


@guarded
def gpu_check(
    device: str = "cuda", out: Path = Path("gpu_check.json"), tiny: bool = False
) -> int:
    """Measure what can only be seen on a GPU, within ten minutes.

    Each figure is printed as it is measured, and `out` is written after each part, so
    that a crash loses only the current one. Returns 1 if a part could not be measured.

    Args:
        device: the GPU, or cpu with --tiny.
        out: JSON file for all figures.
        tiny: only try the parts, with the tiny presets.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(
            "gpu-check measures a GPU, and torch sees no CUDA device on this machine: "
            "run it where there is one, or try its parts with --device cpu --tiny"
        )
    if torch.device(device).type == "cpu" and not tiny:
        raise UserError(
            "gpu-check on the CPU would say nothing about a GPU: give --tiny too, "
            "which tries its parts with the tiny presets"
        )
    check_output(out)
    fast.use()
    captured.use()
    # A whole mini-batch of 32 fits on a GPU, so one pass is enough.
    sizes: dict = {"rollouts": 2, "eval_problems": 8, "micro_batch_size": 32}
    here = Here(TrainConfig(**sizes, device=device))
    if tiny:
        few: dict = {"prompts_per_rollout": 4, "group_size": 4, "max_new_tokens": 8}
        config = replace(here.config, **few, minibatches=2)
        warming = {"skill_steps": 4, "habit_steps": 2}
        here = Here(config, "tiny", "tiny-moe", 1, warming=warming, patience=0.1)
    start, figures = time.perf_counter(), {"machine": show(machine(device))}
    for name, part in parts(here).items():
        print(f"\n{name}")
        late = time.perf_counter() - start > LIMIT
        over = {"not measured": f"the limit of {LIMIT:.0f} seconds was reached"}
        figures[name] = show(over if late else figures_of(part, here))
        seconds = round(time.perf_counter() - start, 1)
        figures["machine"]["seconds in all"] = seconds
        write(out, json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
    print(f"\n{table(figures)}\n{seconds} seconds in all; wrote {out}")
    failed = [name for name, part in figures.items() if "error" in part]
    if failed:
        print(f"these could not be measured: {'; '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def table(figures: Mapping[str, Mapping]) -> str:
    """Format one row per timed part; – stands for an unknown figure."""
    timed = {n: part for n, part in figures.items() if "seconds per rollout" in part}
    rows = [[name, *map(part.get, COLUMNS)] for name, part in timed.items()]
    return tabulate(rows, ["", *COLUMNS.values()], floatfmt=",.4g", missingval="–")


def machine(device: str) -> dict[str, Any]:
    """Return the device and the versions."""
    found: dict = {}
    if device.startswith("cuda"):
        gpu = torch.cuda.get_device_properties(device)
        found = {"memory, MiB": round(gpu.total_memory / 2**20)}
        found["CUDA"], device = torch.version.cuda, gpu.name
    return {"device": device, **found, **provenance()}
