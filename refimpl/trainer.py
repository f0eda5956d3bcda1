"""Training: K updates on every rollout, one row of history for each.

    collect    problems → prompts → rollout → rewards → advantages
    update     K times: log-probs → loss → gradient → step
    evaluate   held-out problems

Every random choice is drawn from a generator seeded by (run seed, rollout, purpose),
so a run can be resumed anywhere and the global generators are never touched.
"""

import contextlib
import hashlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refimpl import algorithms, checkpoint
from refimpl.advantages import gae, whiten
from refimpl.aggregation import aggregate
from refimpl.algorithms import Algorithm, value_loss
from refimpl.config import TrainConfig
from refimpl.history import History
from refimpl.kl import ESTIMATORS, k1, token_rewards
from refimpl.models import check_pair, frozen_copy, make_critic, pick_device
from refimpl.rewards import overlong_punishment, score
from refimpl.rollout import Rollout, check_prompts, log_probs, sample, values
from refimpl.tasks import Arithmetic
from refimpl.warm_start import warm_start


class StalenessError(RuntimeError):
    """The ratio never left 1: no clip or gate was ever tested by this run."""


class DynamicSamplingError(RuntimeError):
    """No group with differing rewards was found: there is nothing to learn from."""


@dataclass
class Run:
    """What `train` carries from rollout to rollout."""

    algorithm: Algorithm
    config: TrainConfig
    tokenizer: PreTrainedTokenizerBase
    task: object
    reward: Callable
    model: PreTrainedModel
    critic: PreTrainedModel | None
    reference: PreTrainedModel | None
    optimizer: torch.optim.Optimizer
    history: History

    def precision(self):
        """Autocast for bfloat16, nothing otherwise."""
        if self.config.dtype != "bfloat16":
            return contextlib.nullcontext()
        return torch.autocast(self.model.device.type, torch.bfloat16)


@dataclass
class Batch:
    """A rollout with everything that stays constant during its K updates.

    `mask` says which tokens have a loss: the rollout's, less what is filtered out.
    """

    rollout: Rollout
    mask: Float[Tensor, "B T"]
    advantages: Float[Tensor, "B T"]
    ref_logp: Float[Tensor, "B T"] | None = None
    old_values: Float[Tensor, "B T"] | None = None
    targets: Float[Tensor, "B T"] | None = None


def train(
    algorithm: str | Algorithm,
    *,
    config: TrainConfig | None = None,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    task=None,
    reward: Callable | None = None,
    checkpoint_dir: str | None = None,
    resume: bool = False,
    progress: bool = True,
) -> History:
    """Train a copy of `model` with `algorithm`; the history holds the trained copy.

    **Arguments:**

    - `algorithm`: a name of `ALGORITHMS`, or an `Algorithm` of your own.
    - `model`, `tokenizer`: any causal LM; default: the warm-started tiny model.
    - `task`: see `refimpl.tasks`; default: the arithmetic world. `reward`: a function
      with TRL's signature in place of the task's own.
    - `checkpoint_dir`: where to save every `checkpoint_every` rollouts; `resume`
      continues from there, bit for bit. Ctrl-C finishes the rollout, saves and stops.

    Raises `ValueError` or `TypeError` on bad input before any work, `StalenessError`
    if the largest |ratio − 1| stays at rounding noise although K > 1.
    """
    config = TrainConfig() if config is None else config
    algorithm = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
    config.check(algorithm)
    config = config.completed(algorithm)
    saved = _saved(algorithm, config, checkpoint_dir) if resume else None
    if checkpoint_dir is not None:
        checkpoint.check_writable(checkpoint_dir)
    run = prepare(algorithm, config, model, tokenizer, task, reward)
    if saved is not None:
        _restore(run, saved)
    steps = range(len(run.history), config.rollouts)
    bar = tqdm(steps, desc=run.algorithm.name, disable=not progress)
    with _finish_on_interrupt() as interrupted:
        for step in bar:
            row = _step(run, step)
            run.history.rows.append(row)
            bar.set_postfix(reward=f"{row['reward']:.2f}", refresh=False)
            last = step + 1 == config.rollouts or interrupted.is_set()
            if checkpoint_dir is not None and (
                last or (step + 1) % config.checkpoint_every == 0
            ):
                checkpoint.save(checkpoint_dir, _state(run))
            if interrupted.is_set():
                raise KeyboardInterrupt(f"stopped after {step + 1} rollouts")
            if step + 1 in (5, config.rollouts):
                _check_staleness(run)
    run.history.model = run.model
    return run.history


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task=None,
    *,
    problems: int = 256,
    max_new_tokens: int = 48,
    temperature: float = 1.0,
    seed: int = 0,
) -> float:
    """Mean of the task's reward over one sampled answer to each held-out problem."""
    task = Arithmetic() if task is None else task
    rows = task.held_out(problems, seed)
    prompts = [row["prompt"] for row in rows]
    rollout = sample(
        model,
        tokenizer,
        prompts,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
    )
    rewards = score(task.reward, prompts, rollout.texts(tokenizer), _columns(rows))
    return sum(rewards) / len(rewards)


@dataclass
class Drawn:
    """Sampled responses and their scores, before anything is chosen from them.

    `correct` is the task's own reward, `scores` that of the run's reward function.
    """

    rollout: Rollout
    texts: list[str]
    scores: Float[Tensor, " B"]
    correct: Float[Tensor, " B"]

    @classmethod
    def join(cls, parts: list["Drawn"]) -> "Drawn":
        return cls(
            Rollout.join([part.rollout for part in parts]),
            [text for part in parts for text in part.texts],
            torch.cat([part.scores for part in parts]),
            torch.cat([part.correct for part in parts]),
        )


def collect(run: Run, step: int) -> tuple[Batch, dict[str, float | None]]:
    """Sample a rollout, score it, and turn scores into advantages."""
    config = run.config
    drawn = _draw(run, step)
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
    batch, measured = _advantages(run, rollout, scores)
    return batch, {**metrics, **measured, **_describe(run, drawn)}


def _draw(run: Run, step: int, again: int = 0) -> Drawn:
    """One round of prompts, responses and scores; `again` numbers the refills."""
    config, suffix = run.config, f" {again}" if again else ""
    rows = run.task.sample(
        config.prompts_per_rollout, seed_for(config.seed, step, "q" + suffix)
    )
    with run.precision():
        rollout = sample(
            run.model,
            run.tokenizer,
            [row["prompt"] for row in rows],
            group_size=config.group_size,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            seed=seed_for(config.seed, step, "sample" + suffix),
        )
    rows = [row for row in rows for _ in range(config.group_size)]
    prompts, texts = [row["prompt"] for row in rows], rollout.texts(run.tokenizer)
    scores = correct = score(run.reward, prompts, texts, _columns(rows))
    if run.reward is not run.task.reward:
        correct = score(run.task.reward, prompts, texts, _columns(rows))
    device = rollout.ids.device
    return Drawn(
        rollout,
        texts,
        torch.tensor(scores, device=device),
        torch.tensor(correct, device=device),
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
            "or dynamic_sampling=False"
        )
    used = alive[: config.prompts_per_rollout]
    return drawn, torch.isin(drawn.rollout.group, used).nonzero()[:, 0], float(done)


def _advantages(run: Run, rollout: Rollout, scores: Tensor) -> tuple[Batch, dict]:
    config, mask = run.config, rollout.mask
    kept = mask
    if config.overlong_filtering:
        kept = mask * ~rollout.truncated[:, None]
    ref_logp, metrics = None, {}
    if run.reference is not None:
        ref_logp = _no_grad(
            run, lambda part: _score(run, run.reference, part)[0], rollout
        )
        kl = k1(rollout.logp, ref_logp) * mask
        metrics["kl"] = (kl.sum() / mask.sum()).item()
    in_reward = config.beta if config.kl_in == "reward" else 0.0
    reference = rollout.logp if ref_logp is None else ref_logp
    rewards = token_rewards(scores, rollout.logp, reference, mask, in_reward)
    if not run.algorithm.critic:
        advantages = run.algorithm.advantages(rewards.sum(-1), rollout.group)
        advantages = advantages[:, None].expand_as(mask)
        return Batch(rollout, kept, advantages, ref_logp), metrics
    old_values = _no_grad(run, lambda part: values(run.critic, part), rollout)
    advantages, targets = gae(rewards, old_values, mask, config.gamma, config.lam)
    advantages = whiten(advantages, mask)
    return Batch(rollout, kept, advantages, ref_logp, old_values, targets), metrics


def update(run: Run, batch: Batch, step: int) -> dict[str, float]:
    """K optimiser steps over shuffled mini-batches of whole groups."""
    config, rollout = run.config, batch.rollout
    generator = torch.Generator().manual_seed(seed_for(config.seed, step, "shuffle"))
    totals, log_ratios = [], []
    for _ in range(config.epochs):
        groups = rollout.group.unique().cpu()
        order = groups[torch.randperm(len(groups), generator=generator)]
        for part in order.chunk(config.minibatches):
            chosen = torch.isin(rollout.group.cpu(), part).nonzero()[:, 0]
            done = step * config.updates_per_rollout + len(totals)
            totals.append(_one_update(run, batch, chosen, done, log_ratios))
    z = torch.cat(log_ratios)
    low, middle, high = torch.quantile(z, torch.tensor([0.01, 0.5, 0.99])).tolist()
    metrics = {name: _mean([t[name] for t in totals]) for name in totals[0]}
    metrics["ratio/max_deviation"] = max(t["ratio/max_deviation"] for t in totals)
    quantiles = {"log_ratio/q01": low, "log_ratio/q50": middle, "log_ratio/q99": high}
    return {**metrics, **quantiles}


def _one_update(run: Run, batch: Batch, chosen: Tensor, done: int, log_ratios) -> dict:
    """Accumulate the gradient over micro-batches, then step once.

    Rows without a gradient are left out of the passes, never out of the counts.
    """
    config = run.config
    share = min(1.0, (done + 1) / max(1, config.warmup_updates))
    for settings in run.optimizer.param_groups:
        settings["lr"] = settings["peak"] * share
    mask = batch.mask[chosen.to(batch.mask.device)]
    counts = {"batch_tokens": mask.sum().item(), "batch_sequences": len(chosen)}
    total: dict[str, float] = {}
    for part in _micro_batches(run, batch, _with_gradient(run, batch, chosen)):
        loss, metrics, z = _loss(run, part, counts)
        loss.backward()
        weight = part.mask.sum().item() / max(1.0, counts["batch_tokens"])
        for name, value in metrics.items():
            if name == "ratio/max_deviation":
                total[name] = max(total.get(name, 0.0), value)
            elif name in ("loss", "value_loss"):  # already shares of the whole
                total[name] = total.get(name, 0.0) + value
            else:
                total[name] = total.get(name, 0.0) + weight * value
        log_ratios.append(z)
    norm = torch.nn.utils.clip_grad_norm_(run.model.parameters(), config.max_grad_norm)
    if run.critic is not None:
        torch.nn.utils.clip_grad_norm_(run.critic.parameters(), config.max_grad_norm)
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    rate = run.optimizer.param_groups[0]["lr"]
    return {**total, "grad_norm": norm.item(), "learning_rate": rate}


def _loss(run: Run, part: Batch, counts: dict) -> tuple[Tensor, dict, Tensor]:
    """Policy loss + β KL − c₂ entropy (+ value loss): this micro-batch's share."""
    config, rollout, mask = run.config, part.rollout, part.mask
    logp, entropy = _score(run, run.model, rollout)
    arguments = config.loss_arguments(rollout.group)
    result = run.algorithm.policy_loss(
        logp, rollout.logp, part.advantages, mask, **counts, **arguments
    )

    def average(per_token):
        how = arguments.get("aggregation", run.algorithm.aggregation)
        return aggregate(
            per_token,
            mask,
            how,
            group=rollout.group,
            max_length=arguments["max_length"],
            **counts,
        )

    loss = result.loss
    if part.ref_logp is not None and config.kl_in == "loss":
        loss = loss + config.beta * average(
            ESTIMATORS[config.kl_estimator](logp, part.ref_logp)
        )
    if config.entropy_bonus:
        loss = loss - config.entropy_bonus * average(entropy)
    metrics = {"loss": loss.item()}
    if run.critic is not None:
        with run.precision():
            predicted = values(run.critic, rollout)
        of_values = value_loss(
            predicted,
            part.old_values,
            part.targets,
            mask,
            epsilon=config.value_clip,
            batch_tokens=counts["batch_tokens"],
        )
        metrics["value_loss"] = of_values.item()
        loss = loss + of_values
    z = (logp.detach() - rollout.logp)[rollout.mask.bool()].float().cpu()
    return loss, {**metrics, **result.metrics}, z


def seed_for(seed: int, step: int, purpose: str) -> int:
    """A seed of its own for every (run, rollout, purpose)."""
    digest = hashlib.sha256(f"{seed} {step} {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _step(run: Run, step: int) -> dict[str, float | None]:
    """One rollout and its K updates: a row of history."""
    config, start = run.config, time.perf_counter()
    batch, described = collect(run, step)
    measured = update(run, batch, step)
    for name in ("num_tokens", "num_samples"):  # totals of the run
        described[name] += run.history.rows[-1][name] if run.history.rows else 0.0
    row = {"step": float(step), **described, **measured}
    row["step_time"] = time.perf_counter() - start
    row["accuracy"] = None
    if (step + 1) % config.eval_every == 0 or step + 1 == config.rollouts:
        row["accuracy"] = evaluate(
            run.model,
            run.tokenizer,
            run.task,
            problems=config.eval_problems,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
        )
    return row


def prepare(
    algorithm, config, model=None, tokenizer=None, task=None, reward=None
) -> Run:
    """Check everything that can be checked, then build the run (see `train`)."""
    algorithm = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
    config.check(algorithm)
    config = config.completed(algorithm)
    device = pick_device(config.device)
    if (model is None) != (tokenizer is None):
        raise ValueError("give model and tokenizer together, or neither")
    if model is None:
        model, tokenizer, _ = warm_start(device=config.device)
    check_pair(model, tokenizer)
    task = Arithmetic() if task is None else task
    rows = task.sample(config.prompts_per_rollout, 0) + task.held_out(8)
    check_prompts(model, tokenizer, [r["prompt"] for r in rows], config.max_new_tokens)
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    # The copy stays in eval mode: dropout would make π_θ differ from the sampler.
    model = frozen_copy(model).requires_grad_(True).to(device, dtype)
    critic = None
    if algorithm.critic:
        critic = make_critic(model, seed_for(config.seed, 0, "critic"))
    settings = [{"params": model.parameters(), "peak": config.learning_rate}]
    if critic is not None:
        settings.append(
            {"params": critic.parameters(), "peak": config.critic_learning_rate}
        )
    return Run(
        algorithm=algorithm,
        config=config,
        tokenizer=tokenizer,
        task=task,
        reward=task.reward if reward is None else reward,
        model=model,
        critic=critic,
        reference=frozen_copy(model) if config.beta > 0 else None,
        optimizer=torch.optim.AdamW(
            settings,
            lr=config.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=config.weight_decay,
            fused=True,
        ),
        history=History(algorithm.name),
    )


def _state(run: Run) -> dict:
    return {
        "algorithm": run.algorithm.name,
        "config": asdict(run.config),
        "model": run.model.state_dict(),
        "critic": run.critic.state_dict() if run.critic is not None else None,
        "reference": run.reference.state_dict() if run.reference is not None else None,
        "optimizer": run.optimizer.state_dict(),
        "rows": run.history.rows,
    }


MAY_CHANGE_ON_RESUME = {"rollouts", "checkpoint_every", "device"}


def _saved(algorithm: Algorithm, config: TrainConfig, folder: str | None) -> dict:
    """The checkpoint in `folder`, or `ValueError` if this run cannot go on from it."""
    if folder is None:
        raise ValueError("resume=True needs a checkpoint_dir to resume from")
    state = checkpoint.load(folder, torch.device("cpu"))
    checkpoint.check_matches(
        state, algorithm.name, asdict(config), MAY_CHANGE_ON_RESUME
    )
    return state


def _restore(run: Run, state: dict) -> None:
    try:
        for name in ("model", "critic", "reference"):
            if getattr(run, name) is not None:
                getattr(run, name).load_state_dict(state[name])
    except RuntimeError as error:
        raise ValueError(
            "the checkpoint holds a model of another shape; give the model that the "
            "run began with, or use another checkpoint folder"
        ) from error
    run.optimizer.load_state_dict(state["optimizer"])
    run.history.rows[:] = state["rows"]
    for row in run.history.rows:  # measured only because that run was to end there
        done = row["step"] + 1
        if done % run.config.eval_every and done != run.config.rollouts:
            row["accuracy"] = None


@contextlib.contextmanager
def _finish_on_interrupt() -> Iterator[threading.Event]:
    """The first Ctrl-C stops the loop after this rollout; a second one at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # only the main thread can catch signals
        return

    def request(*_):
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = signal.signal(signal.SIGINT, request)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _check_staleness(run: Run) -> None:
    """With K > 1 some ratio must have left 1 by more than rounding."""
    noise = 1e-2 if run.config.dtype == "bfloat16" else 1e-4
    largest = max(run.history["ratio/max_deviation"])
    if run.config.updates_per_rollout > 1 and largest < noise:
        raise StalenessError(
            f"after {len(run.history)} rollouts with K = "
            f"{run.config.updates_per_rollout} updates each, the largest |ratio − 1| "
            f"is {largest:.1e}: the policy does not move, or old log-probs are taken "
            "from the policy being trained. Check the rewards and the learning rate"
        )


def _score(run: Run, model: PreTrainedModel, rollout: Rollout):
    with run.precision():
        return log_probs(model, rollout, run.config.temperature)


@torch.no_grad()
def _no_grad(run: Run, score_part: Callable, rollout: Rollout) -> Float[Tensor, "B T"]:
    """`score_part` over micro-batches, put together again."""
    result = torch.zeros_like(rollout.logp)
    for rows in torch.arange(len(rollout)).split(run.config.micro_batch_size):
        rows = rows.to(result.device)
        part = score_part(rollout.rows(rows))
        result[rows, : part.shape[1]] = part
    return result


def _with_gradient(run: Run, batch: Batch, chosen: Tensor) -> Tensor:
    """The groups of `chosen` that move a weight; at least a row, so a step is taken.

    A group of equal rewards has advantage 0 throughout: unless a KL, an entropy bonus
    or a critic acts on every token, its gradient is exactly 0. Once a policy is good
    that is most of a rollout.
    """
    config = run.config
    on_every_token = config.beta > 0 and config.kl_in == "loss"
    if on_every_token or config.entropy_bonus or run.critic is not None:
        return chosen
    group = batch.rollout.group.cpu()
    moving = group[(batch.advantages * batch.mask != 0).any(-1).cpu()]
    kept = chosen[torch.isin(group[chosen], moving)]
    return kept if len(kept) else chosen[:1]


def _micro_batches(run: Run, batch: Batch, chosen: Tensor) -> Iterator[Batch]:
    """Slices of the mini-batch, sorted by length so that little of each is padding."""
    rollout = batch.rollout
    how = run.config.hyperparameters.get("aggregation", run.algorithm.aggregation)
    if how != "group_token_mean":  # that one needs whole groups side by side
        total = (rollout.prompt_length + rollout.length)[chosen.to(rollout.ids.device)]
        chosen = chosen[total.cpu().sort(stable=True).indices]
    for rows in chosen.split(run.config.micro_batch_size):
        rows = rows.to(rollout.ids.device)
        part = rollout.rows(rows)
        width = part.mask.shape[1]
        rest = {
            f.name: None
            if getattr(batch, f.name) is None
            else getattr(batch, f.name)[rows, :width]
            for f in fields(Batch)
            if f.name != "rollout"
        }
        yield Batch(part, **rest)


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
        "entropy": _token_mean(rollout.entropy, rollout.mask),
        "num_tokens": sum(length) + rollout.prompt_length.sum().item(),
        "num_samples": float(len(length)),
        "completions/mean_length": _mean(length),
        "completions/clipped_ratio": rollout.truncated.float().mean().item(),
        "length/correct": _mean(right),
        "length/wrong": _mean(wrong),
    }
    shown = [run.task.habit(text) for text in texts]
    for habit in run.task.habits:
        own = [c for c, h in zip(correct, shown, strict=True) if h == habit]
        metrics[f"habit/{habit}"] = len(own) / len(shown)
        metrics[f"habit_accuracy/{habit}"] = _mean(own)
    return metrics


def _columns(rows: list[dict]) -> dict[str, list]:
    return {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}


def _token_mean(x: Tensor, mask: Tensor) -> float:
    return (x.detach().sum() / mask.sum()).item()


def _mean(numbers: list[float]) -> float | None:
    return math.fsum(numbers) / len(numbers) if numbers else None


__all__ = [
    "DynamicSamplingError",
    "History",
    "StalenessError",
    "TrainConfig",
    "collect",
    "evaluate",
    "prepare",
    "train",
    "update",
]
