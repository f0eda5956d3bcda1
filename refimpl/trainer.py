"""Training: K updates on every rollout, one row of history for each.

    collect    problems → prompts → rollout → rewards → advantages    (collect.py)
    update     K times: log-probs → loss → gradient → step            (update.py)
    evaluate   held-out problems

Every random choice is drawn from a generator seeded by (run seed, rollout, purpose),
so a run can be resumed anywhere and the global generators are never touched.
"""

import contextlib
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from refimpl import algorithms, checkpoint, dice, moe
from refimpl.algorithms import Algorithm
from refimpl.arguments import guarded
from refimpl.collect import DynamicSamplingError, collect
from refimpl.config import TrainConfig
from refimpl.evaluation import evaluate, mean_at, pass_at, scores
from refimpl.history import History
from refimpl.models import (
    Model,
    check_pair,
    checkpointed,
    fingerprint,
    frozen_copy,
    frozen_names,
    make_critic,
    off_is_start,
    one_thread,
    pick_device,
    trainable_copy,
)
from refimpl.real import sharing
from refimpl.rewards import check_rows, check_task, identity
from refimpl.rollout import check_prompts
from refimpl.run import Run
from refimpl.samples import show
from refimpl.scoring import check_sampling
from refimpl.sft import warm_start
from refimpl.tasks import Arithmetic
from refimpl.update import update


class StalenessError(RuntimeError):
    """The ratio never left 1, so no clip or gate was tested. `history` is the run's."""

    history: History


@guarded
def train(
    algorithm: str | Algorithm,
    *,
    config: TrainConfig | None = None,
    model: Model | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    task=None,
    reward: Callable | None = None,
    checkpoint_dir: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> History:
    """Train a copy of `model` with `algorithm`; the history holds the trained copy.

    **Arguments:**

    - `algorithm`: a name of `ALGORITHMS`, or an `Algorithm` of your own.
    - `model`, `tokenizer`: any causal LM; default: the warm-started tiny model.
      Weights that need no gradient (frozen layers, a LoRA's base) stay as they are,
      and are the trained model's too, in the same memory.
    - `task`: see `refimpl.tasks`; default: the arithmetic world. `reward`: a function
      with TRL's signature in place of the task's own.
    - `checkpoint_dir`: where to save every `checkpoint_every` rollouts; `resume`
      continues from there, bit for bit; `overwrite` starts anew.

    **A run that ends early** returns what it has, with the reason in
    `History.ended` and in a warning: after Ctrl-C (which finishes the rollout, saves,
    and stops; a second one stops at once), when dynamic sampling finds nothing left to
    learn, when a gradient is no longer finite, or when a checkpoint cannot be written.

    Raises `ValueError` or `TypeError` on bad input before any work; what ended it, if
    a run ends before its first rollout is complete; `StalenessError` if the largest
    |ratio − 1| stays at rounding noise although K > 1.
    """
    config = TrainConfig() if config is None else config
    task = Arithmetic() if task is None else task
    reward = getattr(task, "reward", None) if reward is None else reward
    algorithm = _check_arguments(algorithm, config, task, reward)
    config = config.completed(algorithm)
    if resume and overwrite:
        raise ValueError("resume keeps a checkpoint, overwrite replaces it: choose one")
    if (resume or overwrite) and checkpoint_dir is None:
        said = "resume" if resume else "overwrite"
        raise ValueError(f"{said}=True needs a checkpoint_dir, got None")
    with contextlib.ExitStack() as held:
        saved = None
        if checkpoint_dir is not None:
            may_exist = resume or overwrite
            held.enter_context(checkpoint.claim(checkpoint_dir, may_exist=may_exist))
        if resume:
            saved = _saved(algorithm, config, checkpoint_dir, task, reward)
        run = prepare(algorithm, config, model, tokenizer, task, reward)
        if saved is not None:
            _restore(run, saved)
        held.enter_context(one_thread(run.model))
        _loop(run, checkpoint_dir, progress)
    if run.history.ended is not None:
        warnings.warn(str(run.history.ended), stacklevel=3)  # `guarded` is between
    return run.history


def _loop(run: Run, checkpoint_dir: str | Path | None, progress: bool) -> None:
    """Rollout after rollout, until all are done or something ends the run early."""
    config, history = run.config, run.history
    special = getattr(run.tokenizer, "all_special_tokens", ())
    steps = range(len(history), config.rollouts)
    bar = tqdm(steps, desc=run.algorithm.name, disable=not progress)
    with _finish_on_interrupt() as interrupted:
        try:
            for step in bar:
                seen = len(history.samples)
                try:
                    row = _step(run, step, interrupted)
                finally:  # also of a rollout that the run ends in
                    if progress:
                        show(history.samples[seen:], special)
                history.rows.append(row)
                bar.set_postfix(reward=f"{row['reward']:.2f}", refresh=False)
                last = step + 1 == config.rollouts or interrupted.is_set()
                if checkpoint_dir is not None and (
                    last or (step + 1) % config.checkpoint_every == 0
                ):
                    checkpoint.save(checkpoint_dir, _state(run))
                if interrupted.is_set() and step + 1 < config.rollouts:
                    raise KeyboardInterrupt
                if step + 1 in (5, config.rollouts):
                    _check_staleness(run)
        except ENDS_A_RUN as reason:
            _end_early(run, reason)


ENDS_A_RUN = (
    KeyboardInterrupt,
    DynamicSamplingError,
    FloatingPointError,
    checkpoint.CheckpointError,
)


def _end_early(run: Run, reason: BaseException) -> None:
    """Note why the run ended; raise `reason` if there is nothing to hand back."""
    if not run.history.rows:
        raise reason
    run.optimizer.zero_grad(set_to_none=True)  # an update may have been cut short
    said = "interrupted" if isinstance(reason, KeyboardInterrupt) else str(reason)
    run.history.ended = type(reason)(
        f"stopped after {len(run.history)} of {run.config.rollouts} rollouts: {said}"
    )


def _check_arguments(algorithm, config, task, reward) -> Algorithm:
    """The algorithm, or one sentence on the first argument that cannot be right."""
    if isinstance(algorithm, str):
        algorithm = algorithms.get(algorithm)
    check_task(task)
    config.check(algorithm)
    return algorithm


def _rows(task, method: str, n: int) -> list[dict]:
    """n rows from a task that we did not write."""
    dice.salt()  # if it is wrong, that is not the task's fault
    try:
        rows = getattr(task, method)(n, 0)
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise ValueError(f"task.{method}({n}, 0) raised {said}") from error
    return check_rows(rows, method)


def _step(run: Run, step: int, interrupted: threading.Event) -> dict:
    """One rollout and its K updates: a row of history.

    The last row is evaluated, also that of a run which Ctrl-C is about to end.
    """
    config, start = run.config, time.perf_counter()
    batch, described = collect(run, step)
    measured = update(run, batch, step)
    for name in ("num_tokens", "num_samples"):  # totals of the run
        described[name] += run.history.rows[-1][name] if run.history.rows else 0.0
    row = {"step": float(step), **described, **measured}
    row["step_time"] = time.perf_counter() - start
    several = config.eval_samples > 1
    row |= dict.fromkeys(["accuracy", "accuracy/pass"] if several else ["accuracy"])
    last = step + 1 == config.rollouts or interrupted.is_set()
    if (step + 1) % config.eval_every == 0 or last:
        with run.precision():
            found = scores(
                run.model,
                run.tokenizer,
                run.task,
                problems=config.eval_problems,
                samples=config.eval_samples,
                **config.sampling,
            )
        row["accuracy"] = mean_at(found)
        if several:
            row["accuracy/pass"] = pass_at(found, config.eval_samples)
    return row


@guarded
def prepare(
    algorithm: str | Algorithm,
    config: TrainConfig,
    model: Model | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    task=None,
    reward: Callable | None = None,
) -> Run:
    """Check everything that can be checked, then build the run (see `train`)."""
    task = Arithmetic() if task is None else task
    reward = getattr(task, "reward", None) if reward is None else reward
    algorithm = _check_arguments(algorithm, config, task, reward)
    config = config.completed(algorithm)
    device = pick_device(config.device)
    if (model is None) != (tokenizer is None):
        raise ValueError("give model and tokenizer together, or neither")
    if model is None:
        model, tokenizer, _ = warm_start(device=config.device)
    check_pair(model, tokenizer)
    rows = _rows(task, "sample", config.prompts_per_rollout)
    if len(rows) != config.prompts_per_rollout:
        raise ValueError(
            f"task.sample({config.prompts_per_rollout}, 0) must return as many rows, "
            f"each with a prompt; it returned {len(rows)}"
        )
    rows = rows + _rows(task, "held_out", 8)
    check_prompts(model, tokenizer, [r["prompt"] for r in rows], config.max_new_tokens)
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    model = trainable_copy(model).to(device, dtype)
    if dtype == torch.float64 and moe.is_moe(model):
        model.set_experts_implementation("eager")  # the fused one has no float64
    with one_thread(model):
        check_sampling(model, tokenizer)
        routers_known = _check_routers(algorithm, config, model)
        share_prompts = _shares_prompts(config, model)
    if config.gradient_checkpointing:
        _check_checkpointing(model, routers_known)
    critic = None
    if algorithm.critic:
        critic = make_critic(model, dice.seed_for(config.seed, 0, "critic"))
    reference = None
    if config.beta > 0 and not off_is_start(model):
        reference = frozen_copy(model)
    settings = _parameters(config, model)
    if critic is not None:
        settings.append(
            {"params": critic.parameters(), "peak": config.critic_learning_rate}
        )
    history = History(algorithm.name)
    history.model = model
    return Run(
        algorithm=algorithm,
        config=config,
        tokenizer=tokenizer,
        task=task,
        reward=reward,
        model=model,
        critic=critic,
        reference=reference,
        optimizer=_optimizer(config, settings),
        history=history,
        routers_known=routers_known,
        share_prompts=share_prompts,
    )


def _optimizer(config: TrainConfig, settings: list[dict]) -> torch.optim.Optimizer:
    common: dict[str, Any] = {
        "lr": config.learning_rate,
        "weight_decay": config.weight_decay,
        "fused": True,
    }
    if config.optimizer == "sgd":
        return torch.optim.SGD(settings, **common)
    return torch.optim.AdamW(settings, betas=(0.9, 0.95), **common)


def _parameters(config: TrainConfig, model: Model) -> list[dict]:
    """What is trained, and at which rate; routers apart where theirs is another."""
    own = [p for p in model.parameters() if p.requires_grad]
    if config.router_rate == 1:
        return [{"params": own, "peak": config.learning_rate}]
    every = [p for router in moe.routers(model) for p in router.parameters()]
    routers = [p for p in every if p.requires_grad]
    known = {id(p) for p in routers}
    rest = [p for p in own if id(p) not in known]
    return [
        {"params": rest, "peak": config.learning_rate},
        {"params": routers, "peak": config.router_rate * config.learning_rate},
    ]


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


def _shares_prompts(config: TrainConfig, model: Model) -> bool:
    """Whether this run shares prompts; `ValueError` if it must and cannot."""
    if config.share_prompts is None:
        return sharing.worthwhile(model) and sharing.agrees(model)
    if config.share_prompts and not (sharing.possible(model) and sharing.agrees(model)):
        raise ValueError(
            f"share_prompts=True: {type(model).__name__} cannot read a prompt once for "
            "several responses, which takes a dense model with full attention in every "
            "layer, by PyTorch's own attention; leave share_prompts at None"
        )
    return config.share_prompts


def _check_checkpointing(model: Model, routers_known: bool) -> None:
    """Raise `ValueError` if the layers of `model` cannot be computed again."""
    if routers_known:
        raise ValueError(
            "gradient_checkpointing: the experts that are recorded or replayed in the "
            f"forward pass of {type(model).__name__} would be chosen anew when its "
            "layers are computed again; leave it off for a mixture of experts, and "
            "make micro_batch_size smaller"
        )
    with checkpointed(model):
        pass


def _trained(model: Model, frozen: set[str]) -> dict:
    """The state of `model` without what is never trained: that is given again."""
    return {n: x for n, x in model.state_dict().items() if n not in frozen}


def _state(run: Run) -> dict:
    frozen = frozen_names(run.model)
    return {
        "algorithm": run.algorithm.name,
        "config": asdict(run.config),
        "task": identity(run.task),
        "reward": identity(run.reward),
        "salt": dice.salt(),
        "model": _trained(run.model, frozen),
        "critic": run.critic.state_dict() if run.critic is not None else None,
        "reference": None if run.reference is None else _trained(run.reference, frozen),
        "frozen": fingerprint(run.model),
        "optimizer": run.optimizer.state_dict(),
        "past": run.past,
        "rows": run.history.rows,
        "samples": run.history.samples,
    }


MAY_CHANGE_ON_RESUME = {"rollouts", "checkpoint_every", "device"}
MAY_CHANGE_ON_RESUME |= {"gradient_checkpointing", "samples_every"}


def _saved(algorithm, config: TrainConfig, folder, task, reward) -> dict:
    """The checkpoint in `folder`, or `ValueError` if this run cannot go on from it."""
    state = checkpoint.load(folder, torch.device("cpu"))
    checkpoint.check_matches(
        state, algorithm.name, asdict(config), MAY_CHANGE_ON_RESUME
    )
    planned = state["config"]["rollouts"]
    if config.schedule != "constant" and planned != config.rollouts:
        raise ValueError(
            f"the {config.schedule} schedule of the checkpoint reaches 0 after "
            f"{planned} rollouts; with {config.rollouts} the learning rates so far "
            f"would have been others. Resume with rollouts={planned}, or use another "
            "checkpoint folder"
        )
    for what, now in (("task", identity(task)), ("reward", identity(reward))):
        if state[what] != now:
            raise ValueError(
                f"the checkpoint was trained with the {what} {state[what]}, not with "
                f"{now}; give the same {what}, or use another checkpoint folder"
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
    now = _state(run)
    same_base = torch.equal(now["frozen"], state["frozen"])
    try:
        for name in ("model", "critic", "reference"):
            if (part := getattr(run, name)) is None:
                continue
            if state[name].keys() != now[name].keys() or not same_base:
                raise RuntimeError("what is trained, or what is frozen, was another")
            part.load_state_dict(state[name], strict=False)
    except RuntimeError as error:
        raise ValueError(
            "the checkpoint holds a model of another shape, or with other frozen "
            "weights; give the model that the run began with, or use another "
            "checkpoint folder"
        ) from error
    run.optimizer.load_state_dict(state["optimizer"])
    run.past = [row.to(run.model.device) for row in state["past"]]
    run.history.rows[:] = state["rows"]
    run.history.samples[:] = state["samples"]
    for row in run.history.rows:  # measured only because that run was to end there
        done = row["step"] + 1
        if done % run.config.eval_every and done != run.config.rollouts:
            row |= {name: None for name in row if name.split("/")[0] == "accuracy"}


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
        error = StalenessError(
            f"after {len(run.history)} rollouts with K = "
            f"{run.config.updates_per_rollout} updates each, the largest |ratio − 1| "
            f"is {largest:.1e}: the policy does not move, or old log-probs are taken "
            "from the policy being trained. Check the rewards and the learning rate "
            "(chapter 11 goes from symptoms to causes)"
        )
        error.history = run.history
        raise error


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
