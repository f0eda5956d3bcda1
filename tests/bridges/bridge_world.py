"""What the tests of the bridges train on: a small model and rewards that differ."""

import copy
import random
import warnings
from functools import cache

from datasets import Dataset
from trl import GRPOConfig

from refimpl.models import build
from refimpl.sft import warm_start
from refimpl.tasks import Arithmetic

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


@cache
def dense():
    return warm_start()[:2]


@cache
def sparse():
    """A mixture of experts that has learned nothing."""
    _, tokenizer = dense()
    model = build("tiny-moe", tokenizer)
    return model, tokenizer


def reward(completions, answer, **_):
    """Differs also where nothing is right: the share of digits, and the answer."""
    return [
        sum(c.isdigit() for c in text) / (1 + len(text)) + (str(a) in text)
        for text, a in zip(completions, answer)
    ]


def invented(prompts, trainer):
    """A rollout without a model: answers of 1 to 12 tokens, the same for a prompt and
    its place in the group, on however many processes."""
    tokenizer, size = trainer.processing_class, trainer.num_generations
    answers = []
    for place, prompt in enumerate(prompts):
        dice = random.Random(f"{prompt} {place % size}")
        drawn = dice.choices(range(3, 16), k=dice.randint(1, 12))
        answers.append([*drawn, tokenizer.eos_token_id][:12])
    return {
        "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
        "completion_ids": answers,
        "logprobs": None,
    }


def trainer_of(
    kind, folder, settings=None, config=GRPOConfig, moe=False, model=None, **own
):
    """A trainer of the tiny model in float64."""
    small, tokenizer = sparse() if moe else dense()
    model = small if model is None else model
    rows = [
        {"prompt": row["prompt"], "answer": row["answer"]}
        for row in Arithmetic().sample(64, 0)
    ]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        trainer = kind(
            model=copy.deepcopy(model).double(),
            reward_funcs=own.pop("reward_funcs", reward),
            args=config(str(folder), **{**SMALL, **(settings or {})}),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            **own,
        )
    for part in filter(None, (trainer.model, trainer.ref_model)):
        if part.config.model_type == "qwen3_moe":
            part.set_experts_implementation("eager")  # the fused one has no float64
    return trainer


def steps_of(trainer) -> list[dict]:
    """What was logged of each step."""
    return [row for row in trainer.state.log_history if "loss" in row]
