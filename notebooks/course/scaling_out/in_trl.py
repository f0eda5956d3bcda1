"""Chapter 14's run inside TRL: sums, learned with a loss of this package.

    torchrun --standalone --nproc_per_node 2 in_trl.py

Prints the mean reward of every step, as JSON.
"""

import json
import tempfile

from datasets import Dataset
from trl import GRPOConfig

from refimpl.interop.trl import RefimplGRPOTrainer
from refimpl.sft import warm_start
from refimpl.tasks import Arithmetic

world = Arithmetic()
model, tokenizer, _ = warm_start()
args = GRPOConfig(
    tempfile.mkdtemp(),
    per_device_train_batch_size=16,
    num_generations=8,
    steps_per_generation=4,  # K = 4 updates per rollout
    max_completion_length=48,
    learning_rate=2e-4,
    lr_scheduler_type="constant",
    max_steps=80,
    use_cpu=True,
    ddp_backend="gloo",
    bf16=False,
    gradient_checkpointing=False,
    logging_steps=1,
    disable_tqdm=True,
    save_strategy="no",
    report_to=[],
)
trainer = RefimplGRPOTrainer(
    model,
    world.reward,
    args,
    Dataset.from_list(world.sample(2000, seed=0)),
    processing_class=tokenizer,
    algorithm="sapo",
    hyperparameters={"tau_pos": 1.0, "tau_neg": 1.05},
)
trainer.train()
if trainer.accelerator.is_main_process:
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    print(json.dumps(rewards))
