"""Time GRPO here and in TRL's GRPOTrainer: same model, data, settings and machine.

The tiny model (a rollout of 128 with 4 updates), or SmolLM2 (a rollout of 64 answers
with 2 updates). Both sides take turns, so that a machine that slows down slows both.
TRL is large and changes fast, so give it a virtual environment of its own:

    python -m venv .trl
    .trl/bin/pip install -e ".[real]" trl==1.16.0
    cd notebooks
    ../.trl/bin/python -m experiments.gpu.compare_trl              # the tiny model
    ../.trl/bin/python -m experiments.gpu.compare_trl smollm2      # `fetch` it first

How both grow with the answers of a rollout, and with their length:

    for n in 128 512 2048 8192; do … compare_trl --device cuda --rows $n; done
    for n in 48 128 256 512; do … compare_trl smollm2 --device cuda --tokens $n; done

With `--device cuda` our decode step is a CUDA graph (see `captured`), and TRL's is
transformers'. TRL computes layers again in the backward pass unless it is told not to,
which saves memory and costs time. We do not, so here TRL does not either. Both sides
have the same threads. A turn in which other processes kept cores busy is marked: TRL's
went from 0.43 to 10 s when its threads had to wait for another job's.
"""

import itertools
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
import tyro
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from experiments import bench
from experiments.gpu import captured
from refimpl import TrainConfig, seeds, train
from refimpl.loop import MAX_GRAD_NORM
from refimpl.models import frozen_copy, one_thread
from refimpl.pretrained import logprobs
from refimpl.pretrained.chat import Chat
from refimpl.rewards import columns


class Counting:
    """A task whose answers are as long as they may be: the model is asked to count."""

    habits = ("counts",)

    def sample(self, n: int, seed: int) -> list[dict]:
        asked = "Write the whole numbers from {} to 9999, separated by commas."
        first = range(1 + 7 * (seed % 100), 10**4)
        return [{"prompt": asked.format(k)} for k in first[:n]]

    def held_out(self, n: int, seed: int = 0) -> list[dict]:
        return self.sample(n, seed)

    def reward(self, prompts, completions, **columns) -> list[float]:
        return [float(len(text) % 2) for text in completions]

    def habit(self, completion: str) -> str:
        return "counts"


class Clock(TrainerCallback):
    """Record the time at the end of each optimiser step."""

    def __init__(self):
        self.times: list[float] = []

    def on_step_end(self, *_, **__):
        self.times.append(time.perf_counter())


def by_us(model, tokenizer, task, config: TrainConfig) -> list[float]:
    """Return the seconds of each rollout but the first, which includes set-up."""
    given = {"model": model, "tokenizer": tokenizer, "task": task, "progress": False}
    history = train("grpo", config=config, log_probs=logprobs.log_probs, **given)
    return history["step_time"][1:]


def by_trl(
    model, tokenizer, task, config: TrainConfig, reward: Callable | None = None
) -> list[float]:
    """Return the same for TRL, on the problems of our run, in the same order."""
    rows = []
    for step in range(config.rollouts):
        seed = seeds.seed_for(config.seed, step, "q")
        rows += task.sample(config.prompts_per_rollout, seed)

    def paid(completions, row, **_):
        given = columns([rows[i] for i in row])
        return (reward or task.reward)(None, completions, **given)

    clock, responses = Clock(), config.prompts_per_rollout * config.group_size
    prompts = [{"prompt": row["prompt"], "row": i} for i, row in enumerate(rows)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=frozen_copy(model).requires_grad_(True),
            reward_funcs=paid,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(prompts),
            callbacks=[clock],
            args=GRPOConfig(
                output_dir=folder,
                shuffle_dataset=False,
                per_device_train_batch_size=responses // config.minibatches,
                gradient_accumulation_steps=1,
                steps_per_generation=config.minibatches,
                num_generations=config.group_size,
                max_completion_length=config.max_new_tokens,
                max_steps=config.rollouts * config.minibatches,
                temperature=config.temperature,
                learning_rate=config.learning_rate,
                lr_scheduler_type="constant",
                adam_beta2=0.95,
                max_grad_norm=MAX_GRAD_NORM,
                gradient_checkpointing=False,
                beta=0.0,
                loss_type="grpo",
                use_cpu=config.device == "cpu",
                bf16=False,
                report_to="none",
                save_strategy="no",
                logging_steps=10**6,
                disable_tqdm=True,
            ),
        )
        trainer.train()
    ends = clock.times[config.minibatches - 1 :: config.minibatches]
    return [b - a for a, b in itertools.pairwise(ends)]


def busy() -> float:
    """Return the seconds that other processes worked so far (NaN without /proc)."""
    try:
        fields = [int(n) for n in Path("/proc/stat").read_text().split()[1:9]]
    except OSError:
        return math.nan
    idle = sum(fields[3:5])  # time that a hypervisor steals is other work
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def main(
    what: tyro.conf.Positional[Literal["tiny", "smollm2"]] = "tiny",
    repeats: int = 3,
    device: str = "cpu",
    rows: int | None = None,
    tokens: int | None = None,
) -> None:
    """Print the seconds of both sides, turn by turn, and their medians.

    Args:
        rows: answers per rollout; each mini-batch is then read in one pass.
        tokens: the most tokens of an answer; SmolLM2 then counts until it is cut off.
    """
    captured.use()  # where the model is on a GPU
    model, tokenizer, task, config, _ = bench.world(what)
    config = replace(config, rollouts=12, eval_every=12, device=device)
    if rows is not None:
        config = replace(config, prompts_per_rollout=rows // config.group_size)
    if tokens is not None:
        config = replace(config, max_new_tokens=tokens)
        task = Chat(Counting(), tokenizer) if what == "smollm2" else task
    if what == "smollm2" or rows:  # both sides take a mini-batch in one pass
        size = config.prompts_per_rollout * config.group_size // config.minibatches
        config = replace(config, micro_batch_size=size)
    if what == "smollm2":
        few: dict = {"rollouts": 2, "eval_problems": 1, "eval_samples": 1}
        config = replace(config, **few, eval_every=2)
    given = model, tokenizer, task, config
    taken: dict[Callable, list[float]] = {by_us: [], by_trl: []}
    for turn, work in itertools.product(range(repeats), taken):
        start, before = time.perf_counter(), busy()
        with one_thread(model):
            seconds = work(*given)
            threads = torch.get_num_threads()
        taken[work] += seconds
        each = ", ".join(f"{s:.3f}" for s in seconds)
        print(f"turn {turn + 1}, {work.__name__}, threads {threads}: {each} s")
        other = (busy() - before) / (time.perf_counter() - start)
        if other > 0.1:
            print(f"    NOT ALONE: other work took {other:.2f} cores", flush=True)
    ours, theirs = map(statistics.median, taken.values())
    print(f"median seconds per rollout: refimpl {ours:.3f}, TRL {theirs:.3f}")
    print(f"refimpl is {theirs / ours:.1f} times as fast")
    if what == "smollm2" and device == "cpu":
        needed = {"products, attention, drawing, optimiser": bench.NEEDED}
        for name, operators in (needed | {"all operators": "^aten::"}).items():
            share = bench.share_needed(lambda: by_us(*given), operators)
            print(f"share of {name}, refimpl: {share:.2f}")


if __name__ == "__main__":
    tyro.cli(main)
