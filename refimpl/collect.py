"""Experience: problems → prompts → rollout → rewards → advantages.

What comes out is a `Batch`: all that stays constant during the K updates.
"""

import warnings
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from refimpl import dice, moe
from refimpl.advantages import whiten
from refimpl.config import TrainConfig
from refimpl.kl import k1, k3, token_rewards
from refimpl.real.judge import TaskWarning
from refimpl.rewards import columns, overlong_punishment, score, scored
from refimpl.rollout import Rollout, sample
from refimpl.run import (
    Batch,
    Run,
    at_tokens,
    mean,
    score_with,
    token_mean,
    without_gradient,
)
from refimpl.samples import chosen
from refimpl.scoring import values


class DynamicSamplingError(RuntimeError):
    """No group with differing rewards was found: there is nothing to learn from."""


@dataclass
class Drawn:
    """Sampled responses and their scores, before anything is chosen from them.

    `correct` is the task's own reward, `scores` that of the run's reward function, and
    `components` what this is made of, if it says so.
    """

    rollout: Rollout
    texts: list[str]
    scores: Float[Tensor, " B"]
    correct: Float[Tensor, " B"]
    components: dict[str, Float[Tensor, " B"]] = field(default_factory=dict)

    @classmethod
    def join(cls, parts: list["Drawn"]) -> "Drawn":
        return cls(
            Rollout.join([part.rollout for part in parts]),
            [text for part in parts for text in part.texts],
            torch.cat([part.scores for part in parts]),
            torch.cat([part.correct for part in parts]),
            {
                name: torch.cat([part.components[name] for part in parts])
                for name in parts[0].components
            },
        )


def collect(run: Run, step: int) -> tuple[Batch, dict[str, float | None]]:
    """Sample a rollout, score it, and turn scores into advantages."""
    config = run.config
    run.remember()
    drawn = _draw(run, step)
    if step == 0:
        _warn_if_never_right(drawn)
    metrics = {"sampling/rounds": 1.0}
    rows = torch.arange(len(drawn.rollout), device=drawn.scores.device)
    if config.dynamic_sampling:
        drawn, rows, metrics["sampling/rounds"] = _refill(run, step, drawn)
    rollout, scores = drawn.rollout.rows(rows), drawn.scores[rows]
    if config.overlong_share:
        buffer = config.overlong_share * config.max_new_tokens
        scores = scores + overlong_punishment(
            rollout.length, config.max_new_tokens, buffer
        )
    rollout, old_logp, compared = _old_policy(run, rollout)
    batch, measured = _advantages(run, rollout, old_logp, scores)
    return batch, {**metrics, **compared, **measured, **_describe(run, drawn)}


def _draw(run: Run, step: int, again: int = 0) -> Drawn:
    """One round of prompts, responses and scores; `again` numbers the refills."""
    config, suffix = run.config, f" {again}" if again else ""
    rows = run.task.sample(
        config.prompts_per_rollout, dice.seed_for(config.seed, step, "q" + suffix)
    )
    seed = dice.seed_for(config.seed, step, "router" + suffix)
    noise = dice.generator(seed, run.model.device)
    with (
        run.as_sampler(),
        run.routed(noise=config.router_noise, generator=noise) as routing,
    ):
        rollout = sample(
            run.model,
            run.tokenizer,
            [row["prompt"] for row in rows],
            group_size=config.group_size,
            **config.sampling,
            seed=dice.seed_for(config.seed, step, "sample" + suffix),
            routing=routing,
        )
    rows = [row for row in rows for _ in range(config.group_size)]
    prompts, texts = [row["prompt"] for row in rows], rollout.texts(run.tokenizer)
    scores, parts = scored(run.reward, prompts, texts, columns(rows))
    correct = scores
    if run.reward != run.task.reward:
        correct = score(run.task.reward, prompts, texts, columns(rows))
    if config.samples_every and step % config.samples_every == 0 and not again:
        run.history.samples += chosen(step, prompts, texts, scores, config.group_size)
    device = rollout.ids.device
    return Drawn(
        rollout,
        texts,
        torch.tensor(scores, device=device),
        torch.tensor(correct, device=device),
        {name: torch.tensor(part, device=device) for name, part in parts.items()},
    )


def _warn_if_never_right(drawn: Drawn) -> None:
    """Say so, with two samples, where a first rollout has nothing to learn from."""
    if drawn.correct.max() > 0 or drawn.scores.min() < drawn.scores.max():
        return
    shown = [f"{drawn.texts[i]!r:.100}" for i in (0, len(drawn.texts) // 2)]
    warnings.warn(
        f"none of the {len(drawn.texts)} answers of the first rollout is right, and "
        f"all have the same reward ({drawn.scores[0].item():g}): there is nothing to "
        f"learn from. Two of them: {', '.join(shown)}. If they are nearly right, look "
        "at how the answer is extracted and at max_new_tokens (a cut-off answer is "
        "seldom right); else take easier settings of the task, a larger group_size, or "
        "another prompt (the chat template, a system message)",
        TaskWarning,
        stacklevel=2,
    )


def _refill(run: Run, step: int, drawn: Drawn) -> tuple[Drawn, Tensor, float]:
    """Dynamic sampling (DAPO): draw until enough groups have rewards that differ.

    Returns all that was drawn, the rows of the groups to train on, and the rounds. If
    `max_sampling_rounds` do not fill the batch, what was found is trained on; if they
    find no group at all, `DynamicSamplingError`.
    """
    config = run.config
    for done in range(1, config.max_sampling_rounds + 1):
        by_group = drawn.scores.view(-1, config.group_size)
        alive = (by_group != by_group[:, :1]).any(-1).nonzero()[:, 0]
        if len(alive) >= config.prompts_per_rollout or done >= (
            config.max_sampling_rounds
        ):
            break
        drawn = Drawn.join([drawn, _draw(run, step, again=done)])
    if not len(alive):
        raise DynamicSamplingError(
            f"{done} rounds of {config.prompts_per_rollout} prompts gave no group of "
            f"{config.group_size} responses whose rewards differ (mean reward "
            f"{by_group.mean():.2f}): nothing can be learned from them. Give problems "
            "that are sometimes solved, a larger group_size, more max_sampling_rounds, "
            "or dynamic_sampling=False (chapter 11 goes from symptoms to causes)"
        )
    used = alive[: config.prompts_per_rollout]
    return drawn, torch.isin(drawn.rollout.group, used).nonzero()[:, 0], float(done)


@torch.no_grad()
def _old_policy(run: Run, rollout: Rollout) -> tuple[Rollout, Tensor, dict]:
    """π_old's log-probs of the rollout, and the experts that it visits.

    The sampler's own, if the sampler is π_old or is taken for it. Else, or where the
    experts are to be those of a training pass (R2), one teacher-forced pass finds them.
    """
    config = run.config
    differs = config.mismatch and not config.trust_sampler
    if not (differs or config.replay == "R2"):
        return rollout, rollout.logp, {}
    old_logp, recorded = torch.zeros_like(rollout.logp), []
    for rows in torch.arange(len(rollout)).split(config.micro_batch_size):
        rows = rows.to(old_logp.device)
        part = rollout.rows(rows)
        with run.routed(part.experts if config.replay == "R3" else None) as routing:
            logp, _ = score_with(run, run.model, part)
        old_logp[rows, : logp.shape[1]] = logp
        if routing is not None:
            experts = routing.visited(len(part))
            recorded.append((part, experts, routing.log_probs(experts)))
    mask = rollout.mask
    gap = (rollout.logp - old_logp) * mask
    metrics = {
        "sampling/sampling_logp_difference/mean": token_mean(gap.abs(), mask),
        "sampling/sampling_logp_difference/max": gap.abs().max().item(),
        "sampling/kl": token_mean(_kl(config, rollout.logp, old_logp) * mask, mask),
    }
    if recorded:
        # Joined as rollouts, because that pads each part to the same length.
        parts = [replace(p, experts=e, router_logp=w) for p, e, w in recorded]
        whole = Rollout.join(parts)
        unread = rollout.experts == moe.FREE
        experts = whole.experts.masked_fill(unread, moe.FREE)
        router_logp = whole.router_logp.masked_fill(unread, 0.0)
        change = 1 - moe.overlap(rollout.experts, experts).mean(-1)
        metrics["sampling/expert_change"] = at_tokens(change, rollout)
        rollout = replace(rollout, experts=experts, router_logp=router_logp)
    return rollout, old_logp, metrics


def _kl(config: TrainConfig, sampler: Tensor, policy: Tensor) -> Tensor:
    """Estimates KL(sampler ‖ π_old), nats: k3, which is never negative.

    A sampler that leaves tokens out has a smaller support, and k3 then expects too
    little, by the probability that it leaves out: there k1.
    """
    return (k1 if config.truncated else k3)(sampler, policy)


def _advantages(
    run: Run, rollout: Rollout, old_logp: Tensor, scores: Tensor
) -> tuple[Batch, dict]:
    config, mask = run.config, rollout.mask
    kept = mask
    if config.overlong_filtering:
        kept = mask * ~rollout.truncated[:, None]
    ref_logp, metrics = None, {}
    if config.beta > 0:
        ref_logp = without_gradient(run, run.score_reference, rollout)
        kl = k1(old_logp, ref_logp) * mask
        metrics["kl"] = (kl.sum() / mask.sum()).item()
    in_reward = config.beta if config.kl_in == "reward" else 0.0
    reference = old_logp if ref_logp is None else ref_logp
    rewards = token_rewards(scores, old_logp, reference, mask, in_reward)
    if not run.algorithm.critic:
        advantages = run.algorithm.advantages(rewards.sum(-1), rollout.group)
        advantages = advantages[:, None].expand_as(mask)
        return Batch(rollout, kept, old_logp, advantages, ref_logp), metrics
    with run.precision():
        old_values = without_gradient(
            run, lambda part: values(run.critic, part), rollout
        )
    advantages, targets = run.algorithm.advantages(
        rewards, old_values, mask, config.gamma, config.lam
    )
    advantages = whiten(advantages, mask)
    batch = Batch(
        rollout,
        kept,
        old_logp,
        advantages,
        ref_logp,
        old_values=old_values,
        targets=targets,
    )
    return batch, metrics


def _describe(run: Run, drawn: Drawn) -> dict:
    """All that was sampled in numbers, under TRL's names where TRL has one."""
    rollout, correct, texts = drawn.rollout, drawn.correct.tolist(), drawn.texts
    rewards = drawn.scores.view(-1, run.config.group_size)
    compared = rewards if rewards.shape[1] > 1 else rewards.view(1, -1)
    spread = compared.std(-1) if compared.shape[1] > 1 else torch.zeros(1)
    length = rollout.length.tolist()
    right = [n for n, c in zip(length, correct, strict=True) if c > 0.5]
    wrong = [n for n, c in zip(length, correct, strict=True) if c <= 0.5]
    metrics = {
        "reward": rewards.mean().item(),
        "reward_std": spread.mean().item(),
        "frac_reward_zero_std": (spread == 0).float().mean().item(),
        "entropy": token_mean(rollout.entropy, rollout.mask),
        "num_tokens": sum(length) + rollout.prompt_length.sum().item(),
        "num_samples": float(len(length)),
        "completions/mean_length": mean(length),
        "completions/clipped_ratio": rollout.truncated.float().mean().item(),
        "length/correct": mean(right),
        "length/wrong": mean(wrong),
    }
    for name, part in drawn.components.items():
        metrics[f"rewards/{name}/mean"] = part.mean().item()
    shown = [run.task.habit(text) for text in texts]
    for habit in run.task.habits:
        own = [c for c, h in zip(correct, shown, strict=True) if h == habit]
        metrics[f"habit/{habit}"] = len(own) / len(shown)
        metrics[f"habit_accuracy/{habit}"] = mean(own)
    return metrics
