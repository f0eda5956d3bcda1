"""Sampled responses with their rewards, before a batch is chosen from them.

`Scoring` makes them from a rollout, `once` and `DynamicSampling` are two ways
to fill a batch with them, and `describe` computes their metrics for the history.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from refimpl.history import joined, mean, mean_over
from refimpl.kl import k1, k3
from refimpl.rewards import check_share, columns, ignored, score, scored
from refimpl.rollout import Rollout
from refimpl.validation import UserError


class DynamicSamplingError(UserError):
    """No group with differing rewards was found: there is nothing to learn from.

    Carries the responses that were `drawn`.
    """

    drawn: "Responses"


@dataclass
class Responses:
    """B responses, G per problem, with their rewards.

    `correct` is the task's own reward and `rewards` that of the run's function.
    Advantages are computed from `paid`: `rewards` minus the overlong punishment.
    `components` are the named parts of a reward (NaN where one does not apply), and
    `logged` are the metrics that the reward function logs. `compare` maps the responses
    to what an advantage compares within a group (default: their rewards). `rows`: those
    that are trained on (default: all), after `rounds` of sampling.
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
    compare: Callable[["Responses"], Tensor] = lambda drawn: drawn.rewards
    rounds: int = 1
    rows: Int[Tensor, " b"] = None  # type: ignore[assignment]

    def __post_init__(self):
        if self.rows is None:
            self.rows = torch.arange(len(self.rollout), device=self.rewards.device)

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
            rounds[0].compare,
            rounds=len(rounds),
        )

    def component_matrix(self, rows: Int[Tensor, " b"]) -> Float[Tensor, "b K"] | None:
        """Return the components of `rows` as columns; None if the reward names none."""
        if not self.components:
            return None
        return torch.stack([*self.components.values()], -1)[rows]

    @property
    def alive(self) -> Bool[Tensor, " groups"]:
        """True for each group in which an advantage can differ from 0.

        With one response per prompt, the whole rollout is one group.
        """
        shape = (-1, self.group_size) if self.group_size > 1 else (1, -1)
        compared = self.compare(self).view(shape)
        return (compared != compared[:, :1]).any(-1)


@dataclass(frozen=True)
class Scoring:
    """Score a rollout with `reward`, and measure with the task's `own` who is right.

    `punishment` of the span of each response is added to what is trained on. `compare`:
    see `Responses`. Raises `UserError` if one of the functions fails.
    """

    reward: Callable
    own: Callable
    tokenizer: Any
    group_size: int
    punishment: Callable[[Tensor], Tensor | float] = lambda span: 0.0
    compare: Callable[[Responses], Tensor] = Responses.compare

    def __call__(self, problems: list[dict], rollout: Rollout) -> Responses:
        texts = rollout.texts(self.tokenizer)
        # One row per response, as sampled: all G of a problem, then the next.
        rows = [problem for problem in problems for _ in range(self.group_size)]
        prompts = [row["prompt"] for row in rows]
        logged = defaultdict[str, list](list)
        arguments: dict[str, Any] = {
            "completion_ids": rollout.completion_ids(),
            "log_metric": lambda name, x: logged[name].append(float(x)),
            **columns(rows),
        }
        rewards, components = scored(self.reward, prompts, texts, arguments)
        correct = rewards
        if self.reward != self.own:
            # The history's metrics are those of the run's reward: drop the task's.
            silent = arguments | {"log_metric": ignored}
            correct = score(self.own, prompts, texts, silent)
        check_share(correct)
        tensor = partial(torch.tensor, dtype=torch.float32, device=rollout.ids.device)
        return Responses(
            rollout,
            prompts,
            texts,
            rewards=tensor(rewards),
            paid=tensor(rewards) + self.punishment(rollout.span),
            correct=tensor(correct),
            group_size=self.group_size,
            components={name: tensor(x) for name, x in components.items()},
            logged=logged,
            compare=self.compare,
        )


# Ways to fill a batch, f(draw) → responses whose `rows` are trained on


def once(draw: Callable[[], Responses]) -> Responses:
    """Train on all responses of one round."""
    return draw()


@dataclass(frozen=True)
class DynamicSampling:
    """Draw until enough groups have rewards that differ (DAPO, 2503.14476, §3.2).

    If `max_rounds` rounds do not fill a batch of `prompts` groups, the groups found so
    far are used. Raises `DynamicSamplingError` if there are none.
    """

    prompts: int
    max_rounds: int

    def __call__(self, draw: Callable[..., Responses]) -> Responses:
        drawn = draw()
        for done in range(1, self.max_rounds + 1):
            # Equal rewards give Â = 0: such a group would fill the batch with nothing.
            alive = drawn.alive.nonzero()[:, 0]
            if len(alive) >= self.prompts or done >= self.max_rounds:
                break
            drawn = Responses.join([drawn, draw(refill=done)])
        if not len(alive):
            error = DynamicSamplingError(
                f"{done} rounds of {self.prompts} prompts gave no group of "
                f"{drawn.group_size} responses whose rewards differ (mean reward "
                f"{drawn.rewards.mean():.2f}). Give problems that are sometimes "
                "solved, a larger group_size, or more max_sampling_rounds (chapter 11 "
                "goes from symptoms to causes)"
            )
            error.drawn = drawn
            raise error
        chosen = torch.isin(drawn.rollout.group, alive[: self.prompts])
        return replace(drawn, rows=chosen.nonzero()[:, 0], rounds=done)


# Metrics for the history


def describe(drawn: Responses, task) -> dict[str, float | None]:
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
        "sampling/rounds": float(drawn.rounds),
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
    habit_of_text = [task.habit(text) for text in drawn.texts]
    for name in task.habits:
        has = torch.tensor([shown == name for shown in habit_of_text])
        metrics[f"habit/{name}"] = mean(has)
        metrics[f"habit_accuracy/{name}"] = mean(correct[has])
    return joined(metrics, {name: sum(x) / len(x) for name, x in drawn.logged.items()})


def sampler_mismatch(
    rollout: Rollout, old_logp: Float[Tensor, "B T"], truncated: bool
) -> dict[str, float]:
    """Measure how far the sampler is from π_old, in nats, under TRL's names."""
    mask = rollout.mask
    apart = ((rollout.logp - old_logp) * mask).abs()
    # k3 is unbiased only if the sampler may draw every token. With top_k or top_p its
    # mean is below the KL, by the probability that is left out.
    kl = (k1 if truncated else k3)(rollout.logp, old_logp)
    return {
        "sampling/sampling_logp_difference/mean": mean_over(apart, mask),
        "sampling/sampling_logp_difference/max": apart.max().item(),
        "sampling/kl": mean_over(kl * mask, mask),
    }
