"""Sampled responses with their rewards, before a batch is chosen from them.

`scored_responses` makes them from a rollout, `once` and `DynamicSampling` are two ways
to fill a batch with them, and `describe` computes their metrics for the history.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refimpl.history import joined, mean, mean_over
from refimpl.kl import k1, k3
from refimpl.moe import visited_again
from refimpl.rewards import State, check_share, columns, ignored, score, scored
from refimpl.rollout import Rollout
from refimpl.tasks import TaskWarning
from refimpl.validation import UserError


class DynamicSamplingError(UserError):
    """No group with differing rewards was found: there is nothing to learn from."""


@dataclass
class Responses:
    """B responses, G per problem, with their rewards.

    `correct` is the task's own reward and `rewards` that of the run's function.
    Advantages are computed from `paid`: `rewards` minus the overlong punishment.
    `components` are the named parts of a reward (NaN where one does not apply), and
    `logged` are the metrics that the reward function logs, `extra` its columns for the
    samples. `by_component`: the advantages compare every component by itself, as GDPO's
    do.
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
    extra: dict[str, list] = field(default_factory=dict)
    by_component: bool = False

    @classmethod
    def join(cls, rounds: list["Responses"]) -> "Responses":
        """Concatenate the responses of several rounds."""
        names = rounds[0].components
        metrics = dict.fromkeys(name for part in rounds for name in part.logged)
        return cls(
            Rollout.join([part.rollout for part in rounds]),
            [prompt for part in rounds for prompt in part.prompts],
            [text for part in rounds for text in part.texts],
            torch.cat([part.rewards for part in rounds]),
            torch.cat([part.paid for part in rounds]),
            torch.cat([part.correct for part in rounds]),
            rounds[0].group_size,
            {n: torch.cat([part.components[n] for part in rounds]) for n in names},
            # A metric need not be logged in every round.
            {n: [x for p in rounds for x in p.logged.get(n, [])] for n in metrics},
            by_component=rounds[0].by_component,
        )

    def component_matrix(self, rows: Int[Tensor, " b"]) -> Float[Tensor, "b K"] | None:
        """Return the components of `rows` as columns; None if the reward names none."""
        if not self.components:
            return None
        return torch.stack([*self.components.values()], -1)[rows]

    @property
    def alive(self) -> Bool[Tensor, " groups"]:
        """True for each group in which an advantage can differ from 0.

        Its rewards differ, or those of a component where each is compared by itself.
        With one response per prompt, the whole rollout is one group.
        """
        parts = [*self.components.values()] if self.by_component else [self.rewards]
        shape = (-1, self.group_size) if self.group_size > 1 else (1, -1)
        compared = torch.stack(parts, -1).unflatten(0, shape)
        return (compared != compared[:, :1]).any(-1).any(-1)


def scored_responses(
    reward: Callable,
    task_reward: Callable,
    tokenizer: PreTrainedTokenizerBase,
    problems: list[dict],
    rollout: Rollout,
    state: State,
) -> Responses:
    """Score a rollout with `reward`, and measure correctness with the task's reward.

    `state` is the run's progress, which a reward may take. Raises `UserError` if one of
    the functions fails.
    """
    size = len(rollout) // len(problems)
    # One row per response, in the sampler's order: all G of a problem, then the next.
    rows = [problem for problem in problems for _ in range(size)]
    prompts, texts = [row["prompt"] for row in rows], rollout.texts(tokenizer)
    logged: dict[str, list[float]] = {}
    extra: dict[str, list] = {}
    arguments: dict[str, Any] = {
        "completion_ids": rollout.completion_ids(),
        "log_metric": lambda name, x: logged.setdefault(name, []).append(float(x)),
        "log_extra": lambda name, values: extra.setdefault(name, []).extend(values),
        "trainer_state": state,
    }
    arguments |= columns(rows)
    rewards, components = scored(reward, prompts, texts, arguments)
    correct = rewards
    if reward != task_reward:
        # The history's metrics are those of the run's reward: drop the task's.
        silent = arguments | dict.fromkeys(("log_metric", "log_extra"), ignored)
        correct = score(task_reward, prompts, texts, silent)
    check_share(correct)
    device = rollout.ids.device
    large = max(map(abs, rewards)) > 2**20  # where float32 would lose differences
    dtype = torch.float64 if large and device.type != "mps" else torch.float32
    tensor = partial(torch.tensor, dtype=dtype, device=device)
    parts = {name: tensor(numbers) for name, numbers in components.items()}
    paid = tensor(rewards)
    right = tensor(correct)
    # `paid` twice: an overlong punishment, if any, is subtracted later.
    return Responses(
        rollout, prompts, texts, paid, paid, right, size, parts, logged, extra
    )


# Ways to fill a batch: the responses, the rows to train on, and the rounds it took

Filled = tuple[Responses, Int[Tensor, " b"], int]


def once(draw: Callable[[], Responses]) -> Filled:
    """Train on all responses of one round."""
    drawn = draw()
    return drawn, torch.arange(len(drawn.rollout), device=drawn.rewards.device), 1


@dataclass(frozen=True)
class DynamicSampling:
    """Draw until enough groups have rewards that differ (DAPO, 2503.14476, §3.2).

    If `max_rounds` rounds do not fill a batch of `prompts` groups, the groups found so
    far are used. Raises `DynamicSamplingError` if there are none.
    """

    prompts: int
    max_rounds: int

    def __call__(self, draw: Callable[..., Responses]) -> Filled:
        drawn = draw()
        for done in range(1, self.max_rounds + 1):
            # Equal rewards give Â = 0: such a group would fill the batch with nothing.
            alive = drawn.alive.nonzero()[:, 0]
            if len(alive) >= self.prompts or done >= self.max_rounds:
                break
            drawn = Responses.join([drawn, draw(refill=done)])
        if not len(alive):
            raise DynamicSamplingError(
                f"{done} rounds of {self.prompts} prompts gave no group of "
                f"{drawn.group_size} responses whose rewards differ (mean reward "
                f"{drawn.rewards.mean():.2f}). Give problems that are sometimes "
                "solved, a larger group_size, or more max_sampling_rounds (chapter 11 "
                "goes from symptoms to causes)"
            )
        chosen = torch.isin(drawn.rollout.group, alive[: self.prompts])
        return drawn, chosen.nonzero()[:, 0], done


# Metrics for the history


def warn_if_never_right(drawn: Responses) -> None:
    """Warn, with two samples, if the first rollout has nothing to learn from."""
    rewards, texts = drawn.rewards, [f"{text!r:.100}" for text in drawn.texts]
    if drawn.correct.max() > 0 or rewards.min() < rewards.max() or drawn.alive.any():
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
    """Compute metrics of all responses, under TRL's names where TRL has one.

    Lengths are in tokens, the entropy in nats.
    """
    rollout, correct = drawn.rollout, drawn.correct.cpu()
    rewards = drawn.rewards.cpu().view(-1, drawn.group_size)
    # With one response per prompt, the spread is that of the whole rollout.
    compared = rewards if drawn.group_size > 1 else rewards.view(1, -1)
    spread = compared.std(-1) if compared.shape[1] > 1 else torch.zeros(1)
    length, right = rollout.length.cpu(), correct > 0.5
    metrics = {
        "reward": rewards.mean().item(),
        "reward_std": spread.mean().item(),
        "frac_reward_zero_std": (~drawn.alive).float().mean().item(),
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
    habit_of_text = [habit(text) for text in drawn.texts]
    for name in habits:
        has = torch.tensor([shown == name for shown in habit_of_text])
        metrics[f"habit/{name}"] = mean(has)
        metrics[f"habit_accuracy/{name}"] = mean(correct[has])
    return joined(metrics, {name: sum(x) / len(x) for name, x in drawn.logged.items()})


def sampler_mismatch(
    rollout: Rollout, constants: dict[str, Tensor], truncated: bool
) -> tuple[Rollout, dict[str, float]]:
    """Measure how far the sampler is from π_old, in nats.

    Returns the rollout, with the experts that π_old visits if those are recorded, and
    the metrics under TRL's names ({} if no pass has computed log π_old).
    """
    if "old_logp" not in constants:
        return rollout, {}
    old_logp, mask = constants["old_logp"], rollout.mask
    apart = ((rollout.logp - old_logp) * mask).abs()
    # k3 is unbiased only if the sampler may draw every token. With top_k or top_p its
    # mean is below the KL, by the probability that is left out.
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
