"""The two runs that the start page lets a reader drag, one for each of two rewards.

    python -m web.two_rewards

Trains chapter 00's first run, which is rewarded for steps, and the same run rewarded
for right answers. Before the first rollout and after each, the model answers problems
that are never trained on. What these answers earned, how many were right, and three of
them go into `figures/data/two_rewards.json`, in about a minute.
"""

import json
from statistics import fmean

from course.kit.habits import survey
from refimpl import TrainConfig, train, warm_start
from refimpl.run import Run
from refimpl.tasks import Arithmetic
from web.page import ROOT

FILE = ROOT / "figures" / "data" / "two_rewards.json"
SETTINGS = {"rollouts": 16, "learning_rate": 4e-4, "eval_every": 2, "seed": 0}
"""The settings of chapter 00."""
PROBLEMS = 1024
SHOWN = ("5+2+9=", "3+3+9=", "9+5+7+1=")
"""Before training the model guesses at the first, works out the second, and rambles."""


def pays_for_steps(prompts, completions, **columns) -> list[float]:
    """Reward the steps of an answer, at most six: chapter 00's hackable reward."""
    return [min(text.count(";"), 6) / 6 for text in completions]


REWARDS = {"steps": pays_for_steps, "right": Arithmetic.reward}


def stop(model, tokenizer, reward, problems: int = PROBLEMS) -> dict:
    """Measure reward and accuracy on held-out problems, and keep three answers."""
    rows = Arithmetic().held_out(problems)
    seen = survey(model, tokenizer, rows)
    prompts, texts, right = zip(*seen.answers)
    paid = reward(prompts, texts, answer=[row["answer"] for row in rows])
    first = {}
    for prompt, *answer in zip(prompts, texts, paid, right):
        first.setdefault(prompt, answer)
    return {
        "paid": round(fmean(paid), 2),
        "right": round(seen.right, 2),
        "answers": [
            [text, round(worth, 2), is_right]
            for text, worth, is_right in (first[prompt] for prompt in SHOWN)
        ],
    }


def stops(reward) -> list[dict]:
    """Make a stop before the first rollout, and one after each."""
    model, tokenizer, _ = warm_start()
    every = [stop(model, tokenizer, reward)]

    def look(run: Run, step: int) -> None:
        every.append(stop(run.model, tokenizer, reward))

    config = TrainConfig(**SETTINGS)
    common = {"model": model, "tokenizer": tokenizer, "progress": False}
    train("grpo", config=config, reward=reward, hooks=[look], **common)
    return every


def main() -> None:
    told = {"seed": SETTINGS["seed"], "problems": PROBLEMS, "prompts": SHOWN}
    told |= {name: stops(reward) for name, reward in REWARDS.items()}
    # A line for each stop: figures and three answers are read together.
    parts = [f"{json.dumps(key)}: {lines(value)}" for key, value in told.items()]
    FILE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def lines(value) -> str:
    """Write JSON, with each element of a list on a line of its own."""
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"


if __name__ == "__main__":
    main()
