"""Sampled responses with their rewards, before anything is chosen from them.

`scored_responses` makes them of a rollout, `once` and `DynamicSampling` are two ways
to fill a batch with them, and `describe` sums them up for the history.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refimpl.history import joined, mean, mean_over
from refimpl.kl import k1, k3
from refimpl.moe import visited_again
from refimpl.rewards import columns, score, scored
from refimpl.rollout import Rollout
from refimpl.tasks import TaskWarning
from refimpl.validation import UserError


class DynamicSamplingError(UserError):
    """No group with differing rewards was found: there is nothing to learn from."""


@dataclass
class Responses:
    """B responses, G to each problem, and what they were rewarded with.

    `correct` is the task's own reward, `rewards` is that of the run's function, and
    `paid` is what advantages are made of: `rewards` minus the overlong punishment.
    `components` are the parts that a reward names (NaN where one does not apply), and
    `logged` the metrics that it logs itself.
    """

    rollout: Rollout
    prompts: list[str]
    texts: list[str]
    rewards: Float[Tensor, " B"]
    paid: Float[Tensor, " B"]
    correct: Float[Tensor, " B"]
    group_size: int
    components: dict[str, Float[Tensor, " B"]] = field(default_factory=dict)
    logged: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def join(cls, rounds: list["Responses"]) -> "Responses":
        """Put the responses of several rounds together."""
        names = rounds[0].components
        metrics = dict.fromkeys(name for one in rounds for name in one.logged)
        return cls(
            Rollout.join([one.rollout for one in rounds]),
            [prompt for one in rounds for prompt in one.prompts],
            [text for one in rounds for text in one.texts],
            torch.cat([one.rewards for one in rounds]),
            torch.cat([one.paid for one in rounds]),
            torch.cat([one.correct for one in rounds]),
            rounds[0].group_size,
            {n: torch.cat([one.components[n] for one in rounds]) for n in names},
            {n: [x for one in rounds for x in one.logged.get(n, [])] for n in metrics},
        )

    def component_matrix(self, rows: Int[Tensor, " b"]) -> Float[Tensor, "b K"] | None:
        """The components of some rows as columns; None if the reward names none."""
        if not self.components:
            return None
        return torch.stack([*self.components.values()], -1)[rows]


def scored_responses(
    reward: Callable,
    task_reward: Callable,
    tokenizer: PreTrainedTokenizerBase,
    problems: list[dict],
    rollout: Rollout,
) -> Responses:
    """Let `reward` score a rollout, and the task's own reward say what is correct."""
    size = len(rollout) // len(problems)
    rows = [problem for problem in problems for _ in range(size)]
    prompts, texts = [row["prompt"] for row in rows], rollout.texts(tokenizer)
    logged: dict[str, list[float]] = {}
    offered: dict[str, Any] = {
        "completion_ids": rollout.completion_ids(),
        "log_metric": lambda name, x: logged.setdefault(name, []).append(float(x)),
    }
    offered |= columns(rows)
    rewards, components = scored(reward, prompts, texts, offered)
    correct = rewards
    if reward != task_reward:
        # What the task's own reward logs is not about this run's reward.
        silent = offered | {"log_metric": lambda name, x: None}
        correct = score(task_reward, prompts, texts, silent)
    device = rollout.ids.device
    large = max(map(abs, rewards)) > 2**20  # where float32 would lose differences
    dtype = torch.float64 if large and device.type != "mps" else torch.float32
    tensor = partial(torch.tensor, dtype=dtype, device=device)
    parts = {name: tensor(numbers) for name, numbers in components.items()}
    paid = tensor(rewards)
    right = tensor(correct)
    return Responses(rollout, prompts, texts, paid, paid, right, size, parts, logged)


# Ways to fill a batch: the responses, the rows to train on, and the rounds it took

Filled = tuple[Responses, Int[Tensor, " b"], int]


def once(draw: Callable[[], Responses]) -> Filled:
    """Train on all responses of one round."""
    drawn = draw()
    return drawn, torch.arange(len(drawn.rollout), device=drawn.rewards.device), 1


@dataclass(frozen=True)
class DynamicSampling:
    """Draw until enough groups have rewards that differ (DAPO, 2503.14476, §3.2).

    If `max_rounds` of them do not fill a batch of `prompts` groups, those found are
    trained on. Raises `DynamicSamplingError` if there is none.
    """

    prompts: int
    max_rounds: int

    def __call__(self, draw: Callable[..., Responses]) -> Filled:
        drawn = draw()
        for done in range(1, self.max_rounds + 1):
            by_group = drawn.rewards.view(-1, drawn.group_size)
            alive = (by_group != by_group[:, :1]).any(-1).nonzero()[:, 0]
            if len(alive) >= self.prompts or done >= self.max_rounds:
                break
            drawn = Responses.join([drawn, draw(refill=done)])
        if not len(alive):
            raise DynamicSamplingError(
                f"{done} rounds of {self.prompts} prompts gave no group of "
                f"{drawn.group_size} responses whose rewards differ (mean reward "
                f"{by_group.mean():.2f}). Give problems that are sometimes solved, a "
                "larger group_size, or more max_sampling_rounds (chapter 11 goes from "
                "symptoms to causes)"
            )
        learned = torch.isin(drawn.rollout.group, alive[: self.prompts])
        return drawn, learned.nonzero()[:, 0], done


# What a history says of them


def warn_if_never_right(drawn: Responses) -> None:
    """Warn, with two samples, if a first rollout has nothing to learn from."""
    rewards, texts = drawn.rewards, [f"{text!r:.100}" for text in drawn.texts]
    if drawn.correct.max() > 0 or rewards.min() < rewards.max():
        return
    warnings.warn(
        "no answer of the first rollout is right, and all have the same reward "
        f"({rewards[0].item():g}): there is nothing to learn from. Two of them: "
        f"{texts[0]}, {texts[-1]}. If they are nearly right, look at how the answer is "
        "extracted and at max_new_tokens; else take easier problems, a larger "
        "group_size, or another prompt",
        TaskWarning,
        stacklevel=2,
    )


def describe(drawn: Responses, habit: Callable, habits) -> dict[str, float | None]:
    """Metrics of all that was sampled, under TRL's names where TRL has one."""
    rollout, correct = drawn.rollout, drawn.correct.cpu()
    rewards = drawn.rewards.cpu().view(-1, drawn.group_size)
    compared = rewards if drawn.group_size > 1 else rewards.view(1, -1)
    spread = compared.std(-1) if compared.shape[1] > 1 else torch.zeros(1)
    length, right = rollout.length.cpu(), correct > 0.5
    metrics = {
        "reward": rewards.mean().item(),
        "reward_std": spread.mean().item(),
        "frac_reward_zero_std": (spread == 0).float().mean().item(),
        "entropy": mean_over(rollout.entropy, rollout.mask),
        "num_tokens": float(length.sum() + rollout.prompt_length.sum().cpu()),
        "num_samples": float(len(length)),
        "completions/mean_length": mean(length),
        "completions/clipped_ratio": rollout.truncated.float().mean().item(),
        "length/correct": mean(length[right]),
        "length/wrong": mean(length[~right]),
    }
    for name, paid in drawn.components.items():
        metrics[f"rewards/{name}/mean"] = mean(paid[~paid.isnan()])
    shown = [habit(text) for text in drawn.texts]
    for name in habits:
        has = torch.tensor([one == name for one in shown])
        metrics[f"habit/{name}"] = mean(has)
        metrics[f"habit_accuracy/{name}"] = mean(correct[has])
    return joined(metrics, {name: sum(x) / len(x) for name, x in drawn.logged.items()})


def sampler_mismatch(
    rollout: Rollout, constants: dict[str, Tensor], truncated: bool
) -> tuple[Rollout, dict[str, float]]:
    """Measure how far the sampler is from π_old; {} if they are the same.

    Returns the metrics under TRL's names, and the rollout with the experts that π_old
    visits, where those are recorded. A
    sampler that leaves tokens out (`truncated`) has a smaller support: there k3, which
    is never negative, expects too little, by the probability that it leaves out.
    """
    if "old_logp" not in constants:
        return rollout, {}
    old_logp, mask = constants["old_logp"], rollout.mask
    apart = ((rollout.logp - old_logp) * mask).abs()
    kl = (k1 if truncated else k3)(rollout.logp, old_logp)
    metrics = {
        "sampling/sampling_logp_difference/mean": mean_over(apart, mask),
        "sampling/sampling_logp_difference/max": apart.max().item(),
        "sampling/kl": mean_over(kl * mask, mask),
    }
    if "experts" in constants:
        experts, router_logp = constants["experts"], constants["router_logp"]
        rollout, change = visited_again(rollout, experts, router_logp)
        metrics["sampling/expert_change"] = mean_over(change, mask)
    return rollout, metrics
