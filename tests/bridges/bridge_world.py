"""What the tests of the bridge to TRL train on: a small model, rewards that differ.

    torchrun --nproc_per_node 2 tests/bridges/bridge_world.py OUT

makes two optimiser steps of each algorithm on two processes, and OUT gets both steps'
gradients, as what SGD makes of them, and the largest |ratio − 1|. The answers are
invented, so that one process sees the same 24 of them as two; of the three groups one
is on both.
"""

import copy
import os
import random
import sys
import tempfile
import warnings
from functools import cache

import torch
from datasets import Dataset
from trl import GRPOConfig

from refimpl.algorithms import ALGORITHMS
from refimpl.interop.trl import RefimplGRPOTrainer
from refimpl.models import build, weights
from refimpl.sft import warm_start
from refimpl.tasks import Arithmetic

PROCESSES, RATE = int(os.environ.get("WORLD_SIZE", 1)), 2e-3
ON_PROCESSES = {
    "per_device_train_batch_size": 8 // PROCESSES,
    "num_generations": 8,
    "gradient_accumulation_steps": 3,
    "steps_per_generation": 3,
    "num_iterations": 2,  # the second has ratios other than 1
    "max_steps": 2,
    "optim": "sgd",
    "learning_rate": RATE,
    "router_aux_loss_coef": 0.0,  # of each process by itself, in TRL as here
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "scale_rewards": "none",
    "ddp_backend": "gloo" if PROCESSES > 1 else None,
}
CASES = {name: {"algorithm": name} for name in ALGORITHMS}
CASES["group_token_mean"] = {"algorithm": "dapo", "normaliser": "group_token_mean"}
SMALL = {
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "steps_per_generation": 4,  # K = 4 mini-batches of 8, without accumulation
    "max_completion_length": 16,
    "learning_rate": 1e-3,
    "max_steps": 20,
    "gradient_checkpointing": False,
    "bf16": False,
    "use_cpu": True,
    "report_to": [],
    "save_strategy": "no",
    "logging_steps": 1,
    "disable_tqdm": True,
    "seed": 3,
}
dense = cache(lambda: warm_start()[:2])


def reward(completions, answer, **_):
    """Differs also where nothing is right: the share of digits, and the answer."""
    return [
        sum(c.isdigit() for c in text) / (1 + len(text)) + (str(a) in text)
        for text, a in zip(completions, answer)
    ]


def invented(prompts, trainer):
    """A rollout without a model: answers of 1 to 12 tokens, the same for a prompt and
    its place in the group, on however many processes a group may be."""
    tokenizer, size = trainer.processing_class, trainer.num_generations
    first, answers = trainer.accelerator.process_index * len(prompts), []
    for place, prompt in enumerate(prompts, first):
        draw = random.Random(f"{prompt} {place % size}")
        drawn = draw.choices(range(3, 16), k=draw.randint(1, 12))
        answers.append([*drawn, tokenizer.eos_token_id][:12])
    ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    return {"prompt_ids": ids, "completion_ids": answers, "logprobs": None}


def trainer_of(
    folder, settings=None, *, kind=RefimplGRPOTrainer, moe=False, model=None, **given
):
    """A trainer of the tiny model in float64; `moe`: one that has learned nothing."""
    small, tokenizer = dense()
    if model is None:
        model = build("tiny-moe", tokenizer) if moe else small
    config = given.pop("config", GRPOConfig)
    rows = Arithmetic().sample(64, 0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        trainer = kind(
            model=copy.deepcopy(model).double(),
            reward_funcs=given.pop("reward_funcs", reward),
            args=config(str(folder), **SMALL | (settings or {})),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            **given,
        )
    for part in filter(None, (trainer.model, trainer.ref_model)):
        if part.config.model_type == "qwen3_moe":
            part.set_experts_implementation("eager")  # the fused one has no float64
    return trainer


def generation(trainer) -> dict:
    """The first generation, scored."""
    rows = next(iter(trainer.get_train_dataloader()))
    return trainer._generate_and_score_completions(rows)


def steps_of(trainer) -> list[dict]:
    """What was logged of each step."""
    return [row for row in trainer.state.log_history if "loss" in row]


def gradient(case: dict, **settings) -> tuple[torch.Tensor, float]:
    moe = bool(ALGORITHMS[case["algorithm"]].training.get("router_shift"))
    settings = ON_PROCESSES | settings
    case = case | {"settings": settings, "rollout_func": invented, "moe": moe}
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(folder, **case)
        before = weights(trainer.model)
        trainer.train()
        after = weights(trainer.accelerator.unwrap_model(trainer.model))
    largest = max(row["ratio/max_deviation"] for row in steps_of(trainer))
    return (before - after) / RATE, largest


if __name__ == "__main__":
    gradients = {name: gradient(case) for name, case in CASES.items()}
    if os.environ.get("RANK", "0") == "0":
        torch.save(gradients, sys.argv[1])
