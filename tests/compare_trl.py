"""Time one GRPO rollout of 128 with 4 updates, here and in TRL's GRPOTrainer.

Same tiny model, same settings, same machine, one after the other. Not part of the
tests: TRL is heavy and moves fast. In a virtual environment of its own:

    python -m venv .trl
    .trl/bin/pip install -r requirements.txt trl==1.16.0
    .trl/bin/python tests/compare_trl.py
"""

import itertools
import statistics
import tempfile
import time

from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from refimpl.models import frozen_copy
from refimpl.sft import warm_start
from refimpl.tasks import Arithmetic
from refimpl.trainer import TrainConfig, evaluate, train

ROLLOUTS = 12
OURS = TrainConfig(rollouts=ROLLOUTS)


class Clock(TrainerCallback):
    """When each optimiser step ended."""

    def __init__(self):
        self.times = [time.perf_counter()]

    def on_step_end(self, *_, **__):
        self.times.append(time.perf_counter())

    def seconds_per_rollout(self) -> float:
        """Median over rollouts, the first left out: it pays for set-up."""
        marks = self.times[:: OURS.minibatches]
        return statistics.median([b - a for a, b in itertools.pairwise(marks)][1:])


def reward(completions, answer, **columns):
    return Arithmetic.reward(None, completions, answer=answer)


def run_trl(model, tokenizer, folder: str) -> tuple[float, float]:
    clock = Clock()
    rows = Arithmetic().sample(ROLLOUTS * OURS.prompts_per_rollout, seed=0)
    responses = OURS.prompts_per_rollout * OURS.group_size
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
        callbacks=[clock],
        args=GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=responses // OURS.minibatches,
            gradient_accumulation_steps=1,
            steps_per_generation=OURS.minibatches,
            num_generations=OURS.group_size,
            max_completion_length=OURS.max_new_tokens,
            max_steps=ROLLOUTS * OURS.minibatches,
            temperature=OURS.temperature,
            learning_rate=OURS.learning_rate,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            max_grad_norm=OURS.max_grad_norm,
            beta=0.0,
            loss_type="grpo",
            use_cpu=True,
            bf16=False,
            report_to="none",
            save_strategy="no",
            logging_steps=10**6,
            disable_tqdm=True,
        ),
    )
    clock.times = [time.perf_counter()]
    trainer.train()
    return clock.seconds_per_rollout(), evaluate(trainer.model, tokenizer)


def main() -> None:
    model, tokenizer, _ = warm_start()
    history = train(
        "grpo", config=OURS, model=model, tokenizer=tokenizer, progress=False
    )
    ours = statistics.median(history["step_time"][1:])
    with tempfile.TemporaryDirectory() as folder:
        theirs, accuracy = run_trl(
            frozen_copy(model).requires_grad_(True), tokenizer, folder
        )
    print(f"refimpl  {ours:.3f} s per rollout, accuracy {history.accuracy:.2f}")
    print(f"TRL      {theirs:.3f} s per rollout, accuracy {accuracy:.2f}")
    print(f"refimpl is {theirs / ours:.1f} times as fast")


if __name__ == "__main__":
    main()
