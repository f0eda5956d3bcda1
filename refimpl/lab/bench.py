"""`python -m refimpl bench`: speed and accuracy on this machine, as text and JSON."""

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from refimpl import moe, sft
from refimpl.algorithms import ALGORITHMS, get
from refimpl.checks import Count, UserError, guarded
from refimpl.config import TrainConfig
from refimpl.evaluation import evaluate
from refimpl.files import writable_file, write
from refimpl.models import count_parameters
from refimpl.sampling import end_tokens, sample
from refimpl.starts import WarmStart, warm_start
from refimpl.tasks import Arithmetic
from refimpl.train import train

TRAINED = tuple(a for a in ALGORITHMS if a not in ("reinforce", "rspo"))


@guarded
def bench(
    seeds: Count = 10,
    out: Path = Path("bench.json"),
    chapters: Path | None = None,
    names: Collection[str] = TRAINED,
):
    """Print every figure as it is measured, then write them all to `out`.

    `chapters` is a folder of notebooks to be timed too. Raises `UserError` before any
    work if a name is unknown, `seeds` is no number ≥ 1, there are no notebooks, or
    `out` cannot be written.
    """
    for name in names:
        get(name)
    if chapters is not None and not list(chapters.glob("*.ipynb")):
        raise UserError(f"there are no notebooks in {str(chapters)!r}")
    writable_file(out, "the measurements")
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
    if chapters is not None:
        figures |= _show(notebooks(chapters))
    figures |= _show({"peak memory, MiB": _peak_memory()})
    write(out, lambda file: file.write(json.dumps(figures, indent=2) + "\n"))
    print(f"wrote {out}")
    return figures


def training_a_start() -> dict:
    """Seconds to train anew what is shipped, dense and mixture of experts."""
    figures = {}
    for preset in ("tiny", "tiny-moe"):
        start = time.perf_counter()
        sft.train(WarmStart(preset=preset))
        seconds = round(time.perf_counter() - start)
        figures[f"{preset}: warm start trained anew, seconds"] = seconds
    return figures


def sampler(
    model,
    tokenizer,
    repeats: int = 9,
    prompts: Sequence[str] | None = None,
    group_size: int = 8,
    max_new_tokens: int = 48,
) -> dict:
    """Tokens per second of `refimpl.sample` and of `model.generate`, EOS included.

    `prompts`: 16 of the arithmetic world's unless given.
    """
    if prompts is None:
        prompts = [row["prompt"] for row in Arithmetic().sample(16, seed=0)]
    encoded = tokenizer(
        [p for p in prompts for _ in range(group_size)],
        padding=True,
        padding_side="left",
        return_tensors="pt",
    ).to(model.device)
    ends = end_tokens(model, tokenizer)

    def ours() -> float:
        rollout = sample(
            model,
            tokenizer,
            prompts,
            group_size=group_size,
            max_new_tokens=max_new_tokens,
            seed=0,
        )
        return rollout.length.sum().item()

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
        return (end.cumsum(-1) - end == 0).sum().item()  # none ended before it

    tokens, seconds = _in_turn((ours, theirs), repeats)
    sampled, generated = (n / s for n, s in zip(tokens, seconds))
    return {
        "sampler, tokens/s": round(sampled),
        "model.generate, tokens/s": round(generated),
        "sampler / generate": round(sampled / generated, 2),
    }


def recording(repeats: int = 9) -> dict:
    """What it costs the sampler to record the experts of a mixture of experts."""
    model, tokenizer, _ = warm_start(WarmStart(preset="tiny-moe"))
    prompts = [row["prompt"] for row in Arithmetic().sample(16, seed=0)]

    def plain():
        sample(model, tokenizer, prompts, group_size=8)

    def recorded():
        with moe.routed(model) as routing:
            moe.recorded(sample(model, tokenizer, prompts, group_size=8), routing)

    _, (without, with_record) = _in_turn((plain, recorded), repeats)
    return {"MoE sampler, recording / not": round(with_record / without, 2)}


def _in_turn(works: Sequence[Callable], repeats: int) -> tuple[list, list[float]]:
    """What each work returns, and its median seconds.

    They run in turn, so that a machine that slows down slows both.
    """
    results = [work() for work in works]  # the first call pays for set-up
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, taken in zip(works, seconds):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return results, [statistics.median(taken) for taken in seconds]


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
    # A run that never reaches 0.90 takes longer than any that does.
    reached = [run.reached(0.90) or math.inf for run in runs]
    median = statistics.median(reached)
    each = statistics.median(t for run in runs for t in run["step_time"])
    return {
        f"{name}: accuracy, median of {seeds} seeds": statistics.median(final),
        f"{name}: accuracy, worst seed": min(final),
        f"{name}: RL seconds, median": round(statistics.median(seconds), 1),
        f"{name}: RL seconds, slowest": round(max(seconds), 1),
        f"{name}: seconds per rollout with its 4 updates": round(each, 3),
        f"{name}: runs that reached 0.90": sum(n < math.inf for n in reached),
        f"{name}: rollouts to 0.90 (measured every 2)": _or_none(median),
        f"{name}: seconds to 0.90": _or_none(round(median * each, 1)),
    }


def _or_none(number: float) -> float | None:
    """JSON has no infinity: None where fewer than half of the runs arrived."""
    return number if math.isfinite(number) else None


def same_history(model, tokenizer) -> bool:
    """Whether two short runs with one seed record the same numbers."""
    config = TrainConfig(rollouts=3, eval_problems=32)
    first, second = (
        train("grpo", config=config, model=model, tokenizer=tokenizer, progress=False)
        for _ in range(2)
    )
    return first == second


def notebooks(folder: Path) -> dict:
    """Seconds that each notebook takes, alone."""
    figures = {}
    for path in sorted(folder.glob("*.ipynb")):
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
