"""Two optimiser steps of each algorithm, on as many processes as it is started with.

    torchrun --nproc_per_node 2 tests/bridges/processes.py OUT

The answers are invented, so that one process sees the same 24 of them as two; of the
three groups one is on both. OUT gets both steps' gradients, as what SGD makes of them,
and the largest |ratio − 1|.
"""

import os
import sys
import tempfile

import torch
from bridge_world import invented, steps_of, trainer_of

from refimpl.algorithms import ALGORITHMS
from refimpl.models import weights

PROCESSES = int(os.environ.get("WORLD_SIZE", 1))
RATE = 2e-3
SETTINGS = {
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


def gradient(case: dict) -> tuple[torch.Tensor, float]:
    moe = bool(ALGORITHMS[case["algorithm"]].training.get("router_shift"))
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(folder, SETTINGS, moe=moe, rollout_func=invented, **case)
        before = weights(trainer.model)
        trainer.train()
        after = weights(trainer.accelerator.unwrap_model(trainer.model))
    largest = max(row["ratio/max_deviation"] for row in steps_of(trainer))
    return (before - after) / RATE, largest


if __name__ == "__main__":
    gradients = {name: gradient(case) for name, case in CASES.items()}
    if os.environ.get("RANK", "0") == "0":
        torch.save(gradients, sys.argv[1])
