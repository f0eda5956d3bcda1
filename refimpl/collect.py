"""Experience: problems → prompts → rollout → rewards → advantages.

What comes out is a `Batch`: all that stays constant during the K updates.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl import seeds
from refimpl.advantages import CRITIC_FREE, Scored, check, whiten
from refimpl.kl import k1, k3, token_rewards
from refimpl.logprobs import Known
from refimpl.metrics import joined
from refimpl.moe import visited_again
from refimpl.rewards import columns, overlong_punishment, score, scored
from refimpl.rollout import Batch, Rollout
from refimpl.run import Run
from refimpl.samples import chosen, show
from refimpl.tasks import TaskWarning
from refimpl.tasks.rows import rows_of
from refimpl.validation import UserError


class DynamicSamplingError(UserError):
    """No group with differing rewards was found: there is nothing to learn from."""


def collect(run: Run, step: int) -> tuple[Batch, dict[str, float | None]]:
    """Sample a rollout, pay it, and turn that into advantages; with metrics."""
    config = run.config
    drawn, rounds = draw(run, step), 1
    if step == 0:
        warn_if_never_right(drawn)
    rows = torch.arange(len(drawn.rollout), device=drawn.rewards.device)
    if config.dynamic_sampling:
        more = partial(draw, run, step)
        wanted, most = config.prompts_per_rollout, config.max_sampling_rounds
        drawn, rows, rounds = refill(drawn, more, wanted, most)
    rollout, each = drawn.rollout.rows(rows), list(drawn.components.values())
    components = torch.stack(each, -1)[rows] if each else None
    known = rollout.in_parts(run.known, config.micro_batch_size)
    rollout, compared = compare(rollout, known, config.truncated)
    metrics = describe(drawn, run.task.habit, run.task.habits)
    batch, kl = advantages(run, rollout, known, drawn.paid[rows], components)
    return batch, joined({"sampling/rounds": float(rounds)}, compared, kl, metrics)


@dataclass
class Drawn:
    """Sampled responses and their rewards, before anything is chosen from them.

    `correct` is the task's own reward, `rewards` are those of the run's function, and
    `paid` are they, less what an overlong response is punished by. `components` is what
    rewards are made of, if their function says so (NaN where one does not apply);
    `logged` the metrics of that function's own.
    """

    rollout: Rollout
    texts: list[str]
    rewards: Float[Tensor, " B"]
    paid: Float[Tensor, " B"]
    correct: Float[Tensor, " B"]
    group_size: int
    components: dict[str, Float[Tensor, " B"]] = field(default_factory=dict)
    logged: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def join(cls, rounds: list["Drawn"]) -> "Drawn":
        """All of several rounds."""
        names = rounds[0].components
        metrics = dict.fromkeys(name for one in rounds for name in one.logged)
        return cls(
            Rollout.join([one.rollout for one in rounds]),
            [text for one in rounds for text in one.texts],
            torch.cat([one.rewards for one in rounds]),
            torch.cat([one.paid for one in rounds]),
            torch.cat([one.correct for one in rounds]),
            rounds[0].group_size,
            {n: torch.cat([one.components[n] for one in rounds]) for n in names},
            {n: [x for one in rounds for x in one.logged.get(n, [])] for n in metrics},
        )


def draw(run: Run, step: int, again: int = 0) -> Drawn:
    """One round of prompts, responses and rewards; `again` numbers the refills."""
    config, size = run.config, run.config.group_size

    def seed(purpose: str) -> int:
        purpose = f"{purpose} {again}" if again else purpose
        return seeds.seed_for(config.seed, step, purpose)

    rows = rows_of(run.task, "sample", config.prompts_per_rollout, seed("q"))
    rollout = run.sampler.respond(
        run.tokenizer,
        [row["prompt"] for row in rows],
        seed("sample"),
        seed("router"),
        group_size=size,
        **config.sampling,
    )
    rows = [row for row in rows for _ in range(size)]
    prompts, texts = [row["prompt"] for row in rows], rollout.texts(run.tokenizer)
    logged: dict[str, list[float]] = {}
    offered = {
        "completion_ids": rollout.completion_ids(),
        "log_metric": lambda name, x: logged.setdefault(name, []).append(float(x)),
    }
    beside = offered | columns(rows)
    rewards, components = scored(run.reward, prompts, texts, beside)
    correct = rewards
    if run.reward != run.task.reward:
        # What the task's own reward logs is not about this run's reward.
        silent = beside | {"log_metric": lambda name, x: None}
        correct = score(run.task.reward, prompts, texts, silent)
    device = rollout.ids.device
    large = max(map(abs, rewards)) > 2**20  # where float32 would lose differences
    wide = torch.float64 if large and device.type != "mps" else torch.float32
    tensor = partial(torch.tensor, dtype=wide, device=device)
    parts = {name: tensor(numbers) for name, numbers in components.items()}
    own = paid = tensor(rewards)
    if share := config.overlong_share:
        limit = config.max_new_tokens
        paid = own + overlong_punishment(rollout.length, limit, share * limit)
    if config.samples_every and step % config.samples_every == 0 and not again:
        kept = chosen(step, prompts, texts, rewards, size)
        run.history.samples += kept
        if run.progress:
            show(kept, getattr(run.tokenizer, "all_special_tokens", ()))
    return Drawn(rollout, texts, own, paid, tensor(correct), size, parts, logged)


def warn_if_never_right(drawn: Drawn) -> None:
    """Say so, with two samples, where a first rollout has nothing to learn from."""
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


def refill(
    drawn: Drawn, more: Callable[[int], Drawn], prompts: int, max_rounds: int
) -> tuple[Drawn, Tensor, int]:
    """Dynamic sampling (DAPO): draw until enough groups have rewards that differ.

    Returns all that was drawn, the rows of the groups to train on, and the rounds. If
    `max_rounds` do not fill the batch, what was found is trained on; if they find no
    group at all, `DynamicSamplingError`.
    """
    for done in range(1, max_rounds + 1):
        by_group = drawn.rewards.view(-1, drawn.group_size)
        alive = (by_group != by_group[:, :1]).any(-1).nonzero()[:, 0]
        if len(alive) >= prompts or done >= max_rounds:
            break
        drawn = Drawn.join([drawn, more(done)])
    if not len(alive):
        raise DynamicSamplingError(
            f"{done} rounds of {prompts} prompts gave no group of {drawn.group_size} "
            f"responses whose rewards differ (mean reward {by_group.mean():.2f}). Give "
            "problems that are sometimes solved, a larger group_size, or more "
            "max_sampling_rounds (chapter 11 goes from symptoms to causes)"
        )
    learned = torch.isin(drawn.rollout.group, alive[:prompts])
    return drawn, learned.nonzero()[:, 0], done


def compare(rollout: Rollout, known: Known, truncated: bool) -> tuple[Rollout, dict]:
    """The rollout with the experts that π_old visits, and how far the sampler is from
    π_old, under TRL's names; both only where a pass of π_old was asked for.

    A sampler that leaves tokens out has a smaller support: there k3, which is never
    negative, expects too little, by the probability that it leaves out.
    """
    if "old_logp" not in known:
        return rollout, {}
    old_logp, mask = known["old_logp"], rollout.mask
    apart = ((rollout.logp - old_logp) * mask).abs()
    kl = (k1 if truncated else k3)(rollout.logp, old_logp)
    metrics = {
        "sampling/sampling_logp_difference/mean": mean_over(apart, mask),
        "sampling/sampling_logp_difference/max": apart.max().item(),
        "sampling/kl": mean_over(kl * mask, mask),
    }
    if "experts" in known:
        rollout, change = visited_again(rollout, known["experts"], known["router_logp"])
        metrics["sampling/expert_change"] = mean_over(change, mask)
    return rollout, metrics


def advantages(
    run: Run, rollout: Rollout, known: Known, rewards: Tensor, components: Tensor | None
) -> tuple[Batch, dict]:
    """The batch of a rollout: what is paid, less the KL if that is in the reward, is
    turned into advantages by the method's estimator."""
    config, mask, metrics = run.config, rollout.mask, {}
    old_logp = known.get("old_logp", rollout.logp)
    ref_logp, values = known.get("ref_logp"), known.get("old_values")
    penalty = targets = None
    if ref_logp is not None:
        moved = k1(old_logp, ref_logp)
        metrics["kl"] = mean_over(moved * mask, mask)
        penalty = config.beta * moved if config.kl_in == "reward" else None
    none = components is not None and components.isnan().any()
    if config.advantage == "gdpo" and none:
        raise UserError("gdpo compares every component, and one returned None")
    seen = Scored(
        rewards=token_rewards(rewards, mask, penalty),
        group=rollout.group,
        mask=mask,
        values=values,
        gamma=config.gamma,
        lam=config.lam,
        components=components,
        weights=getattr(run.reward, "weights", None),
    )
    estimate = CRITIC_FREE.get(config.advantage, run.algorithm.advantages)(seen)
    check(estimate, mask, f"the advantages of {run.algorithm.name}")
    estimate = estimate.to(mask.dtype)
    if estimate.ndim == 1:
        estimate = estimate[:, None].expand_as(mask)
    if values is not None:
        targets, estimate = estimate + values, whiten(estimate, mask)
    kept = mask * ~rollout.truncated[:, None] if config.overlong_filtering else mask
    batch = Batch(rollout, kept, old_logp, estimate, ref_logp, values, targets)
    return batch, metrics


def describe(drawn: Drawn, habit: Callable, habits) -> dict[str, float | None]:
    """All that was sampled in numbers, under TRL's names where TRL has one."""
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


def mean_over(x: Tensor, mask: Tensor) -> float:
    """The mean of `x`, 0 outside the mask, over response tokens."""
    return (x.detach().sum() / mask.sum()).item()


def mean(x: Tensor) -> float | None:
    """The mean of a row in double precision; None where there is nothing in it."""
    return x.double().mean().item() if len(x) else None
