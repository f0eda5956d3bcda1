"""Time GRPO here and in TRL's GRPOTrainer: same model, data, settings and machine.

The tiny model (a rollout of 128 with 4 updates), SmolLM2 (a rollout of 64 answers with
2 updates), and the sampler against `model.generate`. Both sides take turns, so that a
machine that slows down slows both. TRL is heavy and moves fast, so give it a virtual
environment of its own:

    python -m venv .trl
    .trl/bin/pip install -e ".[real]" trl==1.16.0
    cd notebooks
    ../.trl/bin/python -m experiments.gpu.compare_trl              # the tiny model
    ../.trl/bin/python -m experiments.gpu.compare_trl smollm2      # `fetch` it first
    ../.trl/bin/python -m experiments.gpu.compare_trl sampler --device cuda

On a GPU our decode step is in a CUDA graph (see `captured`), theirs is transformers'.

TRL computes layers again in the backward pass unless it is told not to, which saves
memory and costs time. We do not, so here TRL does not either. Both sides have the same
threads. A turn in which other processes kept cores busy is marked: TRL's went from 0.43
to 10 s when its threads had to wait for another job's.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from experiments import bench, real
from experiments.gpu import captured, machine
from refimpl import TrainConfig, evaluate, seeds, train, warm_start
from refimpl.loop import MAX_GRAD_NORM
from refimpl.models import frozen_copy, one_thread
from refimpl.pretrained import fast, logprobs
from refimpl.pretrained.chat import Chat
from refimpl.pretrained.loading import load
from refimpl.rewards import columns
from refimpl.tasks import Arithmetic


class Clock(TrainerCallback):
    """Record the time at the end of each optimiser step."""

    def __init__(self):
        self.times = [time.perf_counter()]

    def on_step_end(self, *_, **__):
        self.times.append(time.perf_counter())

    def per_rollout(self, updates: int) -> list[float]:
        """Seconds of each rollout but the first, which includes set-up."""
        marks = self.times[::updates]
        return [b - a for a, b in itertools.pairwise(marks)][1:]


def by_us(model, tokenizer, task, config: TrainConfig) -> tuple[list[float], object]:
    given = {"model": model, "tokenizer": tokenizer, "task": task, "progress": False}
    history = train("grpo", config=config, log_probs=logprobs.log_probs, **given)
    return history["step_time"][1:], history.model


def by_trl(
    model, tokenizer, task, config: TrainConfig, reward: Callable | None = None
) -> tuple[list[float], object]:
    """Train with TRL on the problems that our run meets, in their order."""
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
        clock.times = [time.perf_counter()]
        trainer.train()
    return clock.per_rollout(config.minibatches), trainer.model


def in_turn(repeats: int, model, *given) -> list:
    """Print the median seconds of both. Returns the models of the last turn."""
    seconds: dict = {by_us: [], by_trl: []}
    marked = 0
    for turn in range(repeats):
        models = []
        for work, taken in seconds.items():
            since = machine.load()
            with one_thread(model):
                result, trained = work(model, *given)
                threads = torch.get_num_threads()
            busy = machine.disturbed(machine.others(since))
            marked += bool(busy)
            taken += result
            models.append(trained)
            each = ", ".join(f"{s:.3f}" for s in result)
            print(f"turn {turn + 1}, {work.__name__}, threads {threads}: {each} s")
            if busy:
                print(f"    {busy}", flush=True)
    ours, theirs = (statistics.median(taken) for taken in seconds.values())
    print("gradient checkpointing: off on both sides")
    print(f"refimpl  {ours:.3f} s per rollout, median of {len(seconds[by_us])}")
    print(f"TRL      {theirs:.3f} s per rollout, median of {len(seconds[by_trl])}")
    print(f"refimpl is {theirs / ours:.1f} times as fast")
    if marked:
        print(
            f"warning: in {marked} of {2 * repeats} turns this process was not, or not "
            "known to be, alone on the machine: measure again when it is",
            file=sys.stderr,
        )
    return models


def tiny(arguments) -> None:
    model, tokenizer, _ = warm_start()
    config = TrainConfig(rollouts=12, device=arguments.device)
    given = model, tokenizer, Arithmetic(), config
    models = in_turn(arguments.repeats, *given)
    for name, trained in zip(("refimpl", "TRL"), models):
        print(f"{name}: accuracy {evaluate(trained, tokenizer):.2f}")


def smollm2(arguments) -> None:
    """Time the second rollout of each turn, since the first includes set-up.

    On chapter 13's task and system message. Both sides take a mini-batch in one pass.
    """
    model, tokenizer = load(real.MODEL)
    usual = real.GENTLE
    size = usual.prompts_per_rollout * usual.group_size // usual.minibatches
    few: dict = {"rollouts": 2, "eval_problems": 1, "eval_samples": 1}
    config = replace(usual, **few, micro_batch_size=size, device=arguments.device)
    task = Chat(real.TASKS[real.TRAINED_ON](), tokenizer, real.SYSTEM)
    given = model, tokenizer, task, config
    in_turn(arguments.repeats, *given)
    if arguments.device == "cpu":
        needed = {"products, attention, drawing, optimiser": bench.NEEDED}
        for what, operators in (needed | {"all operators": "^aten::"}).items():
            share = bench.share_needed(lambda: by_us(*given), operators)
            print(f"share of {what}, refimpl: {share:.2f}")


def sampler(arguments) -> None:
    """Time batches of 32 answers, as in training and with different prompts."""
    model, tokenizer = load(real.MODEL)
    model = model.to(arguments.device)
    task = Chat(real.TASKS[real.TRAINED_ON](), tokenizer, real.SYSTEM)
    prompts = [row["prompt"] for row in task.sample(32, seed=0)]
    for different, tokens in itertools.product((4, 32), (12, 48)):
        group = 32 // different
        print(f"{different} prompts, {group} answers each, of at most {tokens} tokens")
        given = arguments.repeats, prompts[:different], group, tokens
        since = machine.load()
        bench._show(bench.sampler(model, tokenizer, *given))
        busy = machine.disturbed(machine.others(since))
        print(f"    threads {torch.get_num_threads()}. {busy}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    works = {work.__name__: work for work in (tiny, smollm2, sampler)}
    parser.add_argument("what", nargs="?", choices=works, default="tiny")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    fast.use()
    captured.use()  # where the model is on a GPU
    works[arguments.what](arguments)


if __name__ == "__main__":
    main()
