"""Two optimiser steps of each algorithm, on as many processes as it is started with.

    torchrun --nproc_per_node 2 tests/bridges/processes.py OUT
    python tests/bridges/processes.py OUT

The answers are invented, so that both see the same 8 × accumulation of them. OUT gets
both steps' gradients, as what SGD makes of them, and the largest |ratio − 1|.
"""

import os
import sys
import tempfile

import torch
from bridge_world import invented, steps_of, trainer_of

from refimpl.algorithms import ALGORITHMS
from refimpl.interop.trl import RefimplGRPOTrainer
from refimpl.models import weights

PROCESSES = int(os.environ.get("WORLD_SIZE", 1))
RATE = 2e-3
STEPS = 2
"""The second has ratios other than 1: it goes over the same answers again."""


def settings(accumulation: int) -> dict:
    return {
        "per_device_train_batch_size": 8 // PROCESSES,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": accumulation,
        "num_iterations": STEPS,
        "max_steps": STEPS,
        "optim": "sgd",
        "learning_rate": RATE,
        "router_aux_loss_coef": 0.0,  # of each process by itself, in TRL as here
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "ddp_backend": "gloo" if PROCESSES > 1 else None,
    }


def main(out: str) -> None:
    found = {}
    for name, algorithm in ALGORITHMS.items():
        for accumulation in (1, 3):
            own = settings(accumulation)
            own["scale_rewards"] = "none" if name == "dr_grpo" else "group"
            with tempfile.TemporaryDirectory() as folder:
                trainer = trainer_of(
                    RefimplGRPOTrainer,
                    folder,
                    own,
                    moe="router_shift" in algorithm.training,
                    algorithm=name,
                    rollout_func=invented,
                )
                before = weights(trainer.model)
                trainer.train()
                after = weights(trainer.accelerator.unwrap_model(trainer.model))
                largest = max(row["ratio/max_deviation"] for row in steps_of(trainer))
                found[name, accumulation] = (before - after) / RATE, largest
    if os.environ.get("RANK", "0") == "0":
        torch.save(found, out)


if __name__ == "__main__":
    main(sys.argv[1])
