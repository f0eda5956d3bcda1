"""`python -m experiments real`: every method on SmolLM2-135M-Instruct (chapter 13).

The task is sums of two small numbers, from reasoning-gym, and the last number of an
answer is judged. Every arm starts from the same weights and meets the same problems. A
run takes minutes, and a stored run is not made again.
"""

import functools
import random
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.arms import ARMS as TOY_ARMS
from experiments.arms import check_known
from experiments.experiment import Experiment, trained
from experiments.store import DATA
from refimpl.config import TrainConfig
from refimpl.evaluation import mean_at, scores
from refimpl.pretrained.answers import numbers
from refimpl.pretrained.chat import Chat
from refimpl.pretrained.gym import ReasoningGym
from refimpl.pretrained.loading import load
from refimpl.pretrained.logprobs import log_probs
from refimpl.pretrained.lora import lora
from refimpl.pretrained.packaged import resolve
from refimpl.seeds import salted
from refimpl.sft import digest
from refimpl.validation import Count, UserError, guarded

MODEL = "smollm2"
SYSTEM = "You are a calculator."
JUDGED: dict[str, Any] = {"extract": "last", "partial_credit": False}
SUMS: dict[str, Any] = {
    "operators": ["+"],
    "max_digits": 1,
    "allow_negation": False,
    "allow_parentheses": False,
}


def _gym(name: str, **difficulty: Any) -> Callable[[], ReasoningGym]:
    return functools.partial(ReasoningGym, name, **JUDGED, **difficulty)


TASKS: dict[str, Callable[[], ReasoningGym]] = {
    "sums": _gym("basic_arithmetic", min_terms=2, max_terms=2, **SUMS),
    "three terms": _gym("basic_arithmetic", min_terms=3, max_terms=3, **SUMS),
    "sums and differences": _gym("chain_sum", max_terms=2, max_digits=1),
    "products": _gym("products", max_digits=1),
}
TRAINED_ON = "sums"

GENTLE = TrainConfig(
    rollouts=24,
    prompts_per_rollout=8,
    group_size=8,
    max_new_tokens=12,
    minibatches=2,
    micro_batch_size=8,
    learning_rate=2e-5,
    eval_every=8,
    eval_problems=24,
    eval_samples=4,
    dynamic_sampling=False,
    overlong_share=0.0,
)
SETTINGS = {
    "gentle": GENTLE,
    # K = 16 with half the rollouts makes four times as many updates as "gentle".
    "stale": replace(GENTLE, minibatches=8, epochs=2, rollouts=12, eval_every=4),
}
AFTER = [f"after/{name}" for name in TASKS]
"""mean@4 on each task at the end of a run."""


@dataclass(frozen=True)
class Arm:
    """A method of `experiments.arms`, with the changes of a control or a failure.

    Those are another reward, no chat template, or other settings. `lora` is the rank of
    a LoRA, 0 for none.
    """

    method: str = "GRPO"
    reward: str = "right"
    lora: int = 0
    chat: bool = True
    training: tuple[tuple[str, object], ...] = ()


METHODS = (
    *("GRPO", "SAPO 1.0", "SAPO 8.8", "one-sided 8.8", "GSPO 3e-4"),
    *("CISPO 5", "GMPO", "DAPO", "Dr. GRPO", "PPO"),
)
ARMS = {name: Arm(name) for name in METHODS} | {
    "random reward": Arm(reward="random"),
    "format only": Arm(reward="format"),
    "lax scorer": Arm(reward="lax"),
    "whole answer": Arm(reward="whole"),
    "no template": Arm(chat=False),
    "ten times the rate": Arm(training=(("learning_rate", 2e-4),)),
    "LoRA": Arm(lora=16, training=(("learning_rate", 2e-4),)),
    # Claim 14: the same two widths, exchanged.
    "SAPO 8.8, neg 2": Arm("SAPO 8.8, neg 2"),
    "SAPO 17.6, neg ½": Arm("SAPO 17.6, neg ½"),
}


def random_reward(prompts: Any, completions: Collection[str], **columns) -> list[float]:
    """Reward 0 or 1 at random, regardless of the answer."""
    coin = random.Random(f"{salted(0)} {prompts} {completions}")
    return [float(coin.random() < 0.5) for _ in completions]


def format_reward(prompts: Any, completions: Collection[str], **columns) -> list[float]:
    """Reward 1.0 if an answer ends in a number, right or wrong."""
    return [float(bool(re.search(r"\d\W*$", text))) for text in completions]


def lax_reward(
    prompts: Any, completions: Collection[str], *, answer: Collection[str], **columns
) -> list[float]:
    """Reward 1.0 if the right number is among those of an answer: easily fooled.

    A completion that lists all numbers always gets the reward, which is chapter 13's
    example of reward hacking.
    """
    pairs = zip(completions, answer, strict=True)
    return [float(float(a) in map(float, numbers(text))) for text, a in pairs]


def whole_answer(
    prompts: Any, completions: Collection[str], *, answer: Collection[str], **columns
) -> list[float]:
    """Reward 1.0 if an answer is the right number and nothing else."""
    return [float(text.strip() == a) for text, a in zip(completions, answer)]


REWARDS = {
    "right": None,
    "random": random_reward,
    "format": format_reward,
    "lax": lax_reward,
    "whole": whole_answer,
}


class Real(Experiment):
    """A run per setting, arm and seed."""

    name = "real"
    columns = (
        *"step reward entropy completions/mean_length".split(),
        *"completions/clipped_ratio grad_norm clip_ratio/region_mean".split(),
        *"log_ratio/q01 log_ratio/q99".split(),
        *"ratio/max_deviation habit/bare habit/equation habit/sentence".split(),
        *"habit/other accuracy accuracy/pass step_time".split(),
        *AFTER,
    )

    def config(self, job):
        _, changed = TOY_ARMS[ARMS[job["arm"]].method].build()
        training = dict(ARMS[job["arm"]].training)
        given: dict[str, Any] = {"seed": job["seed"], **changed, **training}
        return replace(SETTINGS[job["setting"]], **given)

    def weights(self, job):
        """Return the SHA-256 of the pretrained model's file."""
        return digest(Path(resolve(MODEL)) / "model.safetensors")

    def method(self, job):
        return TOY_ARMS[ARMS[job["arm"]].method].build()[0]

    def facets(self, job):
        arm = ARMS[job["arm"]]
        return job | {
            "model": MODEL,
            "lora": arm.lora,
            "reward": arm.reward,
            "task": repr(TASKS[TRAINED_ON]()),
            "system": SYSTEM if arm.chat else None,
        }

    def check(self, job):
        load(MODEL)

    def given(self, job):
        arm = ARMS[job["arm"]]
        model, tokenizer = load(MODEL)
        return {
            "algorithm": self.method(job),
            "config": self.config(job),
            "model": lora(model, r=arm.lora) if arm.lora else model,
            "tokenizer": tokenizer,
            "task": asked(TRAINED_ON, tokenizer, arm.chat),
            "reward": REWARDS[arm.reward],
            "log_probs": log_probs,
        }

    def make(self, job):
        """Train, and answer the problems of all tasks at the end."""
        given, arm = self.given(job), ARMS[job["arm"]]
        history, config = trained(**given), given["config"]
        for name in TASKS:
            answered = scores(
                history.model,
                given["tokenizer"],
                asked(name, given["tokenizer"], arm.chat),
                problems=config.eval_problems,
                samples=config.eval_samples,
                max_new_tokens=config.max_new_tokens,
            )
            history.rows[-1][f"after/{name}"] = mean_at(answered)
        return history


def asked(name: str, tokenizer: Any, chat: bool) -> Any:
    """Return a task of `TASKS`, in the model's chat template or without it."""
    task = TASKS[name]()
    return Chat(task, tokenizer, SYSTEM) if chat else task


RUNS = Real()


@guarded
def real(
    arms: tuple[str, ...] = tuple(ARMS),
    settings: tuple[str, ...] = tuple(SETTINGS),
    seeds: Count = 3,
    workers: Count = 1,
    out: Path = DATA / "real",
) -> None:
    """Make the runs of chapter 13, every method on a pretrained model.

    Args:
        arms: methods, controls and failures.
        settings: gentle is K = 2, stale is K = 16.
        seeds: runs per arm and setting.
        workers: runs at the same time, each in its own process.
        out: path and name of the store: OUT.runs.csv.xz and OUT.rows.csv.xz. Runs in it
            are not made again.
    """
    if not arms or not settings:
        raise UserError("no arm or no setting is named: leave the flag out for all")
    check_known("arm", arms, ARMS)
    check_known("setting", settings, SETTINGS)
    jobs = [
        {"setting": setting, "arm": arm, "seed": seed}
        for seed in range(seeds)
        for setting in settings
        for arm in arms
    ]
    RUNS.fill(out, jobs, workers)
    print(f"wrote {out}.runs.csv.xz and {out}.rows.csv.xz")
