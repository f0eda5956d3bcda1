"""`python -m experiments bench`: speed and accuracy on this machine, as text and JSON.

Each method is trained in a separate process, so that its peak memory can be measured.
"""

import itertools
import json
import math
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from experiments import real
from refimpl import logprobs
from refimpl.algorithms import ALGORITHMS, get
from refimpl.config import TrainConfig
from refimpl.files import check_output, write
from refimpl.history import History
from refimpl.loop import train
from refimpl.models import count_parameters, one_thread
from refimpl.pretrained import fast
from refimpl.pretrained.chat import Chat
from refimpl.pretrained.loading import load
from refimpl.pretrained.logprobs import log_probs
from refimpl.sampling import end_tokens, sample
from refimpl.sft import warm_start
from refimpl.tasks import Arithmetic
from refimpl.validation import Count, UserError, guarded

TRAINED = tuple(a for a in ALGORITHMS if a not in ("reinforce", "rspo"))
GOAL = 0.90
"""Runs are timed until they reach this held-out accuracy."""
COLUMNS = (
    "accuracy, median",
    "accuracy, worst seed",
    "rollouts to 0.90 (measured every 2)",
    "seconds to 0.90",
    "seconds per rollout with its updates",
    "rollouts/s",
    "sampled tokens/s",
    "peak memory of its process, MiB",
)
"""The columns of the table: figures that every method has."""
NEEDED = "mm$|linear|attention|softmax|multinomial|exponential|adamw"
"""Operators that no implementation avoids: products, attention, drawing, the step."""


class World(NamedTuple):
    """A model, the task that it is trained on, and the settings of a run."""

    model: Any
    tokenizer: Any
    task: Any
    config: TrainConfig
    log_probs: Callable


def world(name: str) -> World:
    """Load the toy, or the pretrained model of chapter 13 with its task.

    Both are sampled from as in the chapters.
    """
    fast.use()
    if name == "tiny":
        model, tokenizer, _ = warm_start()
        config = TrainConfig(eval_every=2)
        return World(model, tokenizer, Arithmetic(), config, logprobs.log_probs)
    model, tokenizer = load(real.MODEL)
    task = Chat(real.TASKS[real.TRAINED_ON](), tokenizer, real.SYSTEM)
    return World(model, tokenizer, task, replace(real.GENTLE, eval_every=2), log_probs)


@guarded
def bench(
    seeds: Count = 10,
    out: Path = Path("bench.json"),
    algorithms: tuple[str, ...] = TRAINED,
    model: Literal["tiny", "smollm2"] = "tiny",
) -> None:
    """Measure speed, memory and accuracy of the methods in `TRAINED`.

    Args:
        seeds: runs per method.
        out: JSON file for all figures.
        algorithms: methods to measure.
        model: smollm2 takes hours; name few algorithms and few seeds.
    """
    if not algorithms:
        raise UserError("--algorithms names none: name at least one, or leave it out")
    for name in algorithms:
        get(name)
    check_output(out)
    figures = show(beginning(model))
    for name in algorithms:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            figures |= show(pool.submit(training, name, model, seeds).result())
    write(out, json.dumps(figures, indent=2) + "\n")
    print(f"\n{table(figures)}\nwrote {out}")


def beginning(name: str) -> dict:
    """Describe the machine, and time the sampler against `model.generate`.

    The prompts are as in training: 16 with 8 answers each on the toy, or 32 different
    ones.
    """
    model, tokenizer, task, config, _ = world(name)
    prompts, group_size = (16, 8) if name == "tiny" else (32, 1)
    asked = [row["prompt"] for row in task.sample(prompts, seed=0)]
    with one_thread(model):
        return {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "parameters": count_parameters(model),
            **sampler(model, tokenizer, 9, asked, group_size, config.max_new_tokens),
        }


def sampler(
    model,
    tokenizer,
    repeats: int,
    prompts: Sequence[str],
    group_size: int,
    max_new_tokens: int,
) -> dict:
    """Measure tokens per second of `refimpl.sample` and `model.generate`, EOS included.

    They take turns, so that a machine that slows down slows both. On a CPU, also
    measure the share of `generate`'s time that the operators `NEEDED` take.
    """
    encoded = tokenizer(
        [p for p in prompts for _ in range(group_size)],
        padding=True,
        padding_side="left",
        return_tensors="pt",
    ).to(model.device)
    ends = end_tokens(model, tokenizer)
    shape = {"group_size": group_size, "max_new_tokens": max_new_tokens}

    def ours() -> float:
        return sample(model, tokenizer, prompts, seed=0, **shape).length.sum().item()

    def theirs() -> float:
        torch.manual_seed(0)
        ids = model.generate(
            **encoded,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max_new_tokens,
            pad_token_id=tokenizer.pad_token_id,
        )[:, encoded["input_ids"].shape[1] :]
        end = torch.isin(ids, ends).long()
        return (end.cumsum(-1) - end == 0).sum().item()  # 1 up to the first EOS

    tokens = [ours(), theirs()]  # the first call includes set-up
    turns = [[seconds(work) for work in (ours, theirs)] for _ in range(repeats)]
    taken = [statistics.median(each) for each in zip(*turns)]
    sampled, generated = (n / s for n, s in zip(tokens, taken))
    figures = {
        "sampler, tokens/s": round(sampled),
        "model.generate, tokens/s": round(generated),
        "sampler / generate": round(sampled / generated, 2),
    }
    if model.device.type == "cpu":
        share = statistics.median(share_needed(theirs) for _ in range(3))
        figures["generate: share of products, attention, drawing"] = round(share, 2)
    return figures


def seconds(work: Callable) -> float:
    """Return the seconds that one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def share_needed(work: Callable, needed: str = NEEDED) -> float:
    """Return the share of time in unavoidable operators, those that match `needed`.

    1 / share bounds any speed-up (Amdahl's law).
    """
    with torch.profiler.profile() as seen:
        whole = seconds(work)
    counted = (e for e in seen.key_averages() if re.search(needed, e.key))
    return sum(e.self_cpu_time_total for e in counted) / 1e6 / whole


def training(name: str, of: str, seeds: int) -> dict:
    """Train with several seeds: accuracy, speed, time to `GOAL`, peak memory."""
    model, tokenizer, task, config, read = world(of)
    given: dict = {"model": model, "tokenizer": tokenizer, "task": task}
    given |= {"log_probs": read, "progress": False}
    configs = (replace(config, seed=seed) for seed in range(seeds))
    runs = [train(name, config=config, **given) for config in configs]
    final = [run.accuracy for run in runs]
    # A run that never reaches the goal takes longer than any that does.
    rollouts = [
        next((n for n, a in enumerate(run["accuracy"], 1) if a >= GOAL), math.inf)
        for run in runs
    ]
    until = [
        sum(run["step_time"][:n]) if isinstance(n, int) else math.inf
        for run, n in zip(runs, rollouts)
    ]
    each = statistics.median(t for run in runs for t in run["step_time"])
    every = sum(sum(run["step_time"]) for run in runs)
    figures = {
        "accuracy, median": statistics.median(final),
        "accuracy, worst seed": min(final),
        "rollouts to 0.90 (measured every 2)": _or_none(statistics.median(rollouts)),
        "seconds to 0.90": _or_none(round(statistics.median(until), 2)),
        "seconds per rollout with its updates": round(each, 4),
        "rollouts/s": float(f"{1 / each:.3g}"),
        "sampled tokens/s": round(sum(map(_tokens, runs)) / every),
        "peak memory of its process, MiB": peak_memory(),
    }
    return {f"{name}: {what}": figure for what, figure in figures.items()}


def _tokens(run: History) -> float:
    """Count the sampled tokens, including groups that dynamic sampling discarded."""
    counts = itertools.pairwise([0.0, *run["num_samples"]])
    lengths = run["completions/mean_length"]
    return sum((b - a) * n for (a, b), n in zip(counts, lengths))


def _or_none(number: float) -> float | None:
    """Return None for infinity (under half of the runs arrived), which JSON lacks."""
    return number if math.isfinite(number) else None


def table(figures: Mapping) -> str:
    """Format the methods' figures in Markdown; – stands for a missing one."""
    names = [name for name in ALGORITHMS if f"{name}: {COLUMNS[0]}" in figures]
    rows = [["", *COLUMNS], ["---"] * (1 + len(COLUMNS))]
    for name in names:
        cells = [figures.get(f"{name}: {column}") for column in COLUMNS]
        rows.append([ALGORITHMS[name].title, *map(_cell, cells)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(x: float | None) -> str:
    """Format a number with three digits, a large one with all of them."""
    return "–" if x is None else f"{x:,.0f}" if x >= 1000 else f"{x:.3g}"


def show(figures: dict) -> dict:
    """Print figures as they are measured."""
    for name, value in figures.items():
        print(f"{name:>52}  {value}", flush=True)
    return figures


def peak_memory() -> int | None:
    """Return this process's largest resident size so far, MiB (None without /proc)."""
    try:  # getrusage would report the parent's peak if that was larger
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return round(int(status.split("VmHWM:")[1].split()[0]) / 2**10)
