"""`python -m refimpl bench`: speed and accuracy on this machine, as text and JSON."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from refimpl import moe
from refimpl.algorithms import ALGORITHMS
from refimpl.models import count_parameters
from refimpl.rollout import sample
from refimpl.tasks import Arithmetic
from refimpl.trainer import TrainConfig, evaluate, train
from refimpl.sft import WarmStart, _train, warm_start

TRAINED = [name for name in ALGORITHMS if name not in ("reinforce", "rspo")]


def bench(
    seeds: int = 10,
    out: Path = Path("bench.json"),
    chapters: bool = False,
    names: Sequence[str] = TRAINED,
):
    """Print every figure as it is measured, then write them all to `out`."""
    start = time.perf_counter()
    model, tokenizer, _ = warm_start()
    first = time.perf_counter() - start
    figures = _show(
        {
            "first warm_start(), seconds": round(first, 2),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "torch": torch.__version__,
            "parameters": count_parameters(model),
            "warm start accuracy": evaluate(model, tokenizer, problems=1024),
            "same seed, same history": same_history(model, tokenizer),
        }
    )
    figures |= _show(training_a_start())
    figures |= _show(sampler(model, tokenizer))
    figures |= _show(recording())
    for name in names:
        figures |= _show(training(name, model, tokenizer, seeds))
    if chapters:
        figures |= _show(notebooks())
    figures |= _show({"peak memory, MiB": _peak_memory()})
    out.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"wrote {out}")
    return figures


def training_a_start() -> dict:
    """Seconds to train anew what is shipped, dense and mixture of experts."""
    figures = {}
    for preset in ("tiny", "tiny-moe"):
        start = time.perf_counter()
        _train(WarmStart(preset=preset), torch.device("cpu"))
        seconds = round(time.perf_counter() - start)
        figures[f"{preset}: warm start trained anew, seconds"] = seconds
    return figures


def sampler(model, tokenizer, repeats: int = 9) -> dict:
    """Tokens per second of `rollout.sample` and of `model.generate`, 128 responses."""
    rows = Arithmetic().sample(16, seed=0)
    prompts = [row["prompt"] for row in rows]
    encoded = tokenizer(
        [p for p in prompts for _ in range(8)], padding=True, return_tensors="pt"
    )

    def ours() -> float:
        rollout = sample(model, tokenizer, prompts, group_size=8, seed=0)
        return rollout.length.sum().item()

    def theirs() -> float:
        torch.manual_seed(0)
        ids = model.generate(
            **encoded,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            max_new_tokens=48,
            pad_token_id=tokenizer.pad_token_id,
        )[:, encoded["input_ids"].shape[1] :]
        return (ids != tokenizer.pad_token_id).sum().item()

    tokens, seconds = _in_turn((ours, theirs), repeats)
    mine, other = (n / s for n, s in zip(tokens, seconds))
    return {
        "sampler, tokens/s": round(mine),
        "model.generate, tokens/s": round(other),
        "sampler / generate": round(mine / other, 2),
    }


def recording(repeats: int = 9) -> dict:
    """What it costs the sampler to record the experts of a mixture of experts."""
    model, tokenizer, _ = warm_start(WarmStart(preset="tiny-moe"))
    prompts = [row["prompt"] for row in Arithmetic().sample(16, seed=0)]

    def plain():
        sample(model, tokenizer, prompts, group_size=8)

    def recorded():
        with moe.routed(model) as routing:
            sample(model, tokenizer, prompts, group_size=8, routing=routing)

    _, (without, with_record) = _in_turn((plain, recorded), repeats)
    return {"MoE sampler, recording / not": round(with_record / without, 2)}


def _in_turn(works: Sequence[Callable], repeats: int) -> tuple[list, list[float]]:
    """What each work returns, and its median seconds.

    They run in turn, so that a machine that slows down slows both.
    """
    found = [work() for work in works]  # the first call pays for set-up
    seconds = [[] for _ in works]
    for _ in range(repeats):
        for work, taken in zip(works, seconds):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return found, [statistics.median(taken) for taken in seconds]


def training(name: str, model, tokenizer, seeds: int) -> dict:
    """Default runs over seeds: accuracy, seconds, and rollouts to 0.90."""
    runs, seconds = [], []
    for seed in range(seeds):
        config = TrainConfig(seed=seed, eval_every=2)
        history = train(
            name, config=config, model=model, tokenizer=tokenizer, progress=False
        )
        runs.append(history)
        seconds.append(sum(history["step_time"]))
    final = [run.accuracy for run in runs]
    reached = [run.reached(0.90) or len(run) for run in runs]
    each = statistics.median(t for run in runs for t in run["step_time"])
    return {
        f"{name}: accuracy, median of {seeds} seeds": statistics.median(final),
        f"{name}: accuracy, worst seed": min(final),
        f"{name}: RL seconds, median": round(statistics.median(seconds), 1),
        f"{name}: RL seconds, slowest": round(max(seconds), 1),
        f"{name}: seconds per rollout with its 4 updates": round(each, 3),
        f"{name}: rollouts to 0.90 (measured every 2)": statistics.median(reached),
        f"{name}: seconds to 0.90": round(statistics.median(reached) * each, 1),
    }


def same_history(model, tokenizer) -> bool:
    """Whether two short runs with one seed record the same numbers."""
    config = TrainConfig(rollouts=3, eval_problems=32)
    first, second = (
        train("grpo", config=config, model=model, tokenizer=tokenizer, progress=False)
        for _ in range(2)
    )
    return first == second


def notebooks() -> dict:
    """Seconds each chapter takes, alone, warm start cached."""
    figures = {}
    here = Path(__file__).resolve().parents[1] / "notebooks"
    for path in sorted(here.glob("*.ipynb")):
        start = time.perf_counter()
        subprocess.run(
            [
                sys.executable,
                *"-m jupyter nbconvert --to notebook --execute --stdout".split(),
                str(path),
            ],
            check=True,
            capture_output=True,
        )
        figures[f"{path.name}, seconds"] = round(time.perf_counter() - start)
    return figures


def _peak_memory() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10))


def _show(figures: dict) -> dict:
    for name, value in figures.items():
        print(f"{name:>52}  {value}", flush=True)
    return figures
