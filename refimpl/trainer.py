"""Training: K updates on every rollout, one row of history for each.

    collect    problems → prompts → rollout → rewards → advantages    (experience.py)
    update     K times: log-probs → loss → gradient → step            (optimise.py)
    evaluate   held-out problems

Every random choice is drawn from a generator seeded by (run seed, rollout, purpose),
so a run can be resumed anywhere and the global generators are never touched.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refimpl import algorithms, checkpoint, dice, moe
from refimpl.algorithms import Algorithm
from refimpl.config import TrainConfig
from refimpl.collect import DynamicSamplingError, collect
from refimpl.history import History
from refimpl.models import check_pair, frozen_copy, make_critic, pick_device
from refimpl.update import update
from refimpl.rewards import columns, score
from refimpl.rollout import check_prompts, sample
from refimpl.run import Run
from refimpl.tasks import Arithmetic
from refimpl.sft import warm_start


class StalenessError(RuntimeError):
    """The ratio never left 1: no clip or gate was ever tested by this run."""


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
    if the largest |ratio − 1| stays at rounding noise although K > 1,
    `FloatingPointError` if the gradient is no longer finite.
    """
    config = TrainConfig() if config is None else config
    algorithm = algorithms.get(algorithm) if isinstance(algorithm, str) else algorithm
    config.check(algorithm)
    config = config.completed(algorithm)
    task = Arithmetic() if task is None else task
    saved = _saved(algorithm, config, checkpoint_dir, task) if resume else None
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
        with run.precision():
            row["accuracy"] = evaluate(
                run.model,
                run.tokenizer,
                run.task,
                problems=config.eval_problems,
                max_new_tokens=config.max_new_tokens,
                temperature=config.temperature,
            )
    return row


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
    rewards = score(task.reward, prompts, rollout.texts(tokenizer), columns(rows))
    return sum(rewards) / len(rewards)


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
    if dtype == torch.float64 and moe.is_moe(model):
        model.set_experts_implementation("eager")  # the fused one has no float64
    routers_known = _check_routers(algorithm, config, model)
    critic = None
    if algorithm.critic:
        critic = make_critic(model, dice.seed_for(config.seed, 0, "critic"))
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
        routers_known=routers_known,
    )


def _check_routers(algorithm: Algorithm, config: TrainConfig, model) -> bool:
    """Whether routing can be recorded; `ValueError` if it must be and cannot."""
    if not moe.is_moe(model):
        if config.needs_moe:
            raise ValueError(
                f"{', '.join(config.needs_moe)}: {algorithm.name} with this needs a "
                f"mixture of experts, and {type(model).__name__} has no router; use "
                "the preset 'tiny-moe', or another algorithm"
            )
        return False
    try:
        moe.try_out(model)
    except ValueError:
        if config.needs_moe:
            raise
        return False
    return True


def _state(run: Run) -> dict:
    return {
        "algorithm": run.algorithm.name,
        "config": asdict(run.config),
        "task": _name(run.task),
        "salt": dice.salt(),
        "model": run.model.state_dict(),
        "critic": run.critic.state_dict() if run.critic is not None else None,
        "reference": run.reference.state_dict() if run.reference is not None else None,
        "optimizer": run.optimizer.state_dict(),
        "rows": run.history.rows,
    }


MAY_CHANGE_ON_RESUME = {"rollouts", "checkpoint_every", "device"}


def _name(task) -> str:
    """What tells one task from another: its settings, or else its class."""
    return repr(task) if is_dataclass(task) else type(task).__qualname__


def _saved(algorithm, config: TrainConfig, folder: str | None, task) -> dict:
    """The checkpoint in `folder`, or `ValueError` if this run cannot go on from it."""
    if folder is None:
        raise ValueError("resume=True needs a checkpoint_dir to resume from")
    state = checkpoint.load(folder, torch.device("cpu"))
    checkpoint.check_matches(
        state, algorithm.name, asdict(config), MAY_CHANGE_ON_RESUME
    )
    if state["task"] != _name(task):
        raise ValueError(
            f"the checkpoint was trained on {state['task']}, not on {_name(task)}; "
            "give the same task, or use another checkpoint folder"
        )
    if state["salt"] != dice.salt():
        raise ValueError(
            f"the checkpoint was made with REFIMPL_SALT={state['salt']}, now it is "
            f"{dice.salt()}; set the same salt, or use another checkpoint folder"
        )
    if len(state["rows"]) > config.rollouts:
        raise ValueError(
            f"the checkpoint holds {len(state['rows'])} rollouts already, more than "
            f"the {config.rollouts} asked for; ask for more, or start again"
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
